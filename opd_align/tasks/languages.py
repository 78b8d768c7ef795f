"""Answers in other languages: the words that decide how an answer is read, in English.

The readers know English (and the true/false words of `truth`). Here, what a sentence needs to be read by them is
translated word by word: "the answer is", "option", "not X but Y", "less than", "so", numbers in words. The rest stays
as it is. A language is translated only if one of its own words occurs, so that English text is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_MAX_CHARS = 6_000
"""Number of characters at the end of a response whose words are looked at."""

_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH_NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
    "hundred",
    "thousand",
]
_NUMBERS = {
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete "
    "dieciocho diecinueve veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa cien mil",
    "pt": "zero um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete "
    "dezoito dezenove vinte trinta quarenta cinquenta sessenta setenta oitenta noventa cem mil",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept "
    "dix-huit dix-neuf vingt trente quarante cinquante soixante soixante-dix quatre-vingts quatre-vingt-dix cent mille",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert tausend",
    "it": "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove venti trenta quaranta cinquanta sessanta settanta ottanta novanta cento mille",
    "ru": "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать "
    "четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать двадцать тридцать сорок пятьдесят "
    "шестьдесят семьдесят восемьдесят девяносто сто тысяча",
}

# For each language: its own words, by which it is recognised.
_RECOGNISED = {
    "es": "quizás quizá respuesta opción correcta correcto incorrecta incorrecto sino según entonces verdadero verdadera porque está "
    "verdad cierto elijo escojo dólares millones casi más menos gana vende son tiene ganancia número hay",
    "pt": "talvez resposta opção alternativa correta correto incorreta incorreto não então portanto segundo verdadeiro "
    "verdadeira verdade escolho quase milhões menos mais são têm juntas lucro número há",
    "fr": "peut choisis presque réponse reponse pas donc selon vrai faux moins bonne choix sont gagne il est une reste au",
    "de": "vielleicht ich für stimmt wähle knapp millionen milliarden antwort richtig richtige falsch nicht sondern also laut ist weniger mehr mindestens höchstens lautet "
    "ergebnis gewinn verdient sind und insgesamt",
    "it": "forse scelgo milioni risposta opzione corretta giusta quindi secondo vero meno più sono guadagna numero perciò totale",
    "ru": "может возможно это сто выбираю почти не ответ вариант правильный верный верно неверно следовательно значит поэтому меньше больше менее более итого",
}
_AMBIGUOUS_WORDS = {"mais", "son", "il", "est", "une", "au", "also", "und", "secondo", "totale", "hay"}
_LANGUAGE_OF: dict[str, str] = {}
for _language, _words in _RECOGNISED.items():
    for _word in _words.split():
        if _word not in _AMBIGUOUS_WORDS:
            _LANGUAGE_OF.setdefault(_word, _language)

_ENGLISH_TOO = set(
    [
        "zero",
        "once",
        "six",
        "seize",
        "dix",
        "mille",
        "cent",
        "null",
        "elf",
        "due",
        "sei",
        "sete",
        "tres",
        "mil",
        "un",
        "one",
        "uno",
        "trente",
        "pt",
        "um",
        "once",
        "sette",
        "oito",
        "onze",
        "doze",
        "nove",
        "otto",
        "tre",
    ]
)
for _language, _words in _NUMBERS.items():
    for _word in _WORD.findall(_words):
        if len(_word) > 3 and _word not in _ENGLISH_TOO:
            _LANGUAGE_OF.setdefault(_word, _language)
_PHRASES = re.compile(
    r"\b(?:(?P<fr>(?:plus|moins) de|c'est (?:la|le|exact|vrai|faux))|(?P<pt>(?:mais|maior) (?:de|que)|é a [A-Z])|(?P<it>(?:più|meno) di)|(?P<es>es la [A-Z]))\b",
    re.IGNORECASE,
)

# Translations, in this order: longer expressions first.
_TABLES = {
    "es": [
        (r"no es (?:verdad|cierto)", "it is not true"), (r"es (?:verdad|cierto)", "it is true"),
        (r"(?:yo )?(?:elijo|escojo|elegiría)(?: la)?(?: opción| letra| respuesta)?", "I choose"), (r"casi", "nearly"),
        (r"millones", "million"), (r"(?<=\d )mil", "thousand"),
        (r"(?:la )?(?:opción|letra|alternativa) correcta es(?: la)?(?: opción| letra)?", "the answer is"),
        (r"(?:la )?respuesta(?: (?:correcta|final))*(?: (?:es|sería))(?! no\b)(?: la| el)?", "the answer is"),
        (r"(?:la )?respuesta(?: (?:correcta|final))* no es(?: la| el)?", "the answer is not"),
        (r"(?:la )?respuesta(?: (?:correcta|final))*(?=\W{0,3}:)", "Answer"),
        (r"(?:la )?respuesta(?= \(?[A-Z]\b)", "option"),
        (r"(?:la )?(?:opción|letra|alternativa)(?: correcta)?", "option"),
        (r"sino(?: que)?(?: es)?(?: la| el)?", "but"),
        (r"no (?:es|son)(?: la| el)?", "is not"), (r"es la(?= [A-Z]\b)", "it is"), (r"es(?= correct[ao]\b)", "is"),
        (r"\bincorrect[ao]s?", "incorrect"), (r"\bcorrect[ao]s?", "correct"),
        (r"(?:menos|menor(?:es)?) (?:de|que)", "less than"), (r"(?:más|mayor(?:es)?) (?:de|que)", "more than"),
        (r"(?:al menos|como mínimo|por lo menos)", "at least"), (r"(?:como máximo|a lo sumo)", "at most"),
        (r"por (?:lo )?tanto|así que|entonces|en consecuencia", "so"), (r"porque|ya que", "because"),
        (r"podría(?:n)? ser|puede que sea|quizás?|tal vez", "could be"), (r"en total", "in total"),
        (r"no (?:lo )?sé|no estoy segur[oa]", "not sure"), (r"(?<=[A-D] )o(?= (?:la )?[A-D]\b)", "or"),
    ],
    "pt": [
        (r"não é verdade", "it is not true"), (r"é verdade", "it is true"), (r"quase", "nearly"),
        (r"(?:eu )?escolho(?: a)?(?: opção| letra| resposta| alternativa)?", "I choose"),
        (r"milhões", "million"), (r"(?<=\d )mil", "thousand"),
        (r"(?:a )?(?:opção|letra|alternativa) (?:correta|certa) é(?: a)?(?: opção| letra)?", "the answer is"),
        (r"(?:a )?resposta(?: (?:correta|certa|final))*(?: (?:é|seria))(?: a| o)?", "the answer is"),
        (r"(?:a )?resposta(?: (?:correta|certa|final))* não é(?: a| o)?", "the answer is not"),
        (r"(?:a )?resposta(?: (?:correta|certa|final))*(?=\W{0,3}:)", "Answer"),
        (r"(?:a )?(?:opção|letra|alternativa)(?: correta| certa)?", "option"),
        (r"(?:mas|e) sim(?: a| o)?", "but"), (r"não (?:é|são)(?: a| o)?", "is not"), (r"é a(?= [A-Z]\b)", "it is"), (r"é(?= corret[ao]\b)", "is"),
        (r"\bincorret[ao]s?", "incorrect"), (r"\bcorret[ao]s?", "correct"),
        (r"(?:menos|menor) (?:de|do que|que)", "less than"), (r"(?:mais|maior) (?:de|do que|que)", "more than"),
        (r"(?:pelo menos|no mínimo|ao menos)", "at least"), (r"(?:no máximo)", "at most"),
        (r"portanto|logo|então|por isso", "so"), (r"porque|já que|pois", "because"),
        (r"pode(?:ria)? ser|talvez", "could be"), (r"no total|ao todo", "in total"),
        (r"não sei|não tenho certeza", "not sure"), (r"(?<=[A-D] )ou(?= (?:a )?[A-D]\b)", "or"),
    ],
    "fr": [
        (r"ce n'est pas (?:exact|vrai|juste|le cas)", "it is not true"), (r"c'est (?:exact|vrai|juste)", "it is true"),
        (r"(?:je )?(?:choisis|prends)(?: la| le)?(?: réponse| lettre)?|je dirais(?: la| le)?", "I choose"),
        (r"c'est(?: la| le)?(?= [A-Z]\b)", "it is"), (r"presque", "nearly"), (r"millions", "million"),
        (r"(?:la )?(?:bonne )?r[ée]ponse(?: (?:correcte|finale))*(?: (?:est|serait))(?! pas\b)(?: la| le| l')?",
         "the answer is"),
        (r"(?:la )?(?:bonne )?r[ée]ponse(?: (?:correcte|finale))* n'est pas(?: la| le)?", "the answer is not"),
        (r"(?:la )?(?:bonne )?r[ée]ponse(?: (?:correcte|finale))*(?=\W{0,3}:)", "Answer"),
        (r"(?:la )?(?:bonne )?r[ée]ponse(?= \(?[A-Z]\b)", "option"), (r"(?:l'option|le choix|la lettre)", "option"),
        (r"(?:ce )?n'est pas(?: la| le)?", "is not"), (r"mais(?: plutôt)?(?: la| le)?", "but"),
        (r"est(?= correcte?\b)", "is"), (r"\bincorrecte?s?\b", "incorrect"), (r"\bcorrecte?s?\b", "correct"),
        (r"(?:moins de|moins que|inférieure? à)", "less than"), (r"(?:plus de|plus que|supérieure? à)", "more than"),
        (r"au moins", "at least"), (r"(?:au plus|au maximum)", "at most"), (r"au total|en tout", "in total"),
        (r"donc|par conséquent|ainsi", "so"), (r"parce que|car|puisque", "because"), (r"c'est", "it is"),
        (r"pourrait être|peut-être", "could be"), (r"je ne sais pas", "not sure"),
        (r"(?<=[A-D] )ou(?= (?:la )?[A-D]\b)", "or"),
    ],
    "de": [
        (r"das (?:stimmt|trifft) nicht(?: zu)?", "it is not true"), (r"das stimmt|das trifft zu", "it is true"),
        (r"ich (?:wähle|nehme|entscheide mich für)(?: antwort| option)?", "I choose"), (r"beinahe|knapp", "nearly"),
        (r"millionen", "million"), (r"milliarden", "billion"),
        (r"(?:die )?richtige (?:option|lösung|wahl) ist|richtig ist(?= (?:\W{0,3}[A-Z]\b|option|antwort))", "the answer is"),
        (r"es ist(?= [A-Z]\b)", "it is"),
        (r"(?:die )?(?:(?:richtige|korrekte|endgültige) )?antwort (?:ist|lautet|wäre)(?! nicht\b)", "the answer is"),
        (r"(?:die )?(?:(?:richtige|korrekte|endgültige) )?antwort (?:ist|lautet) nicht", "the answer is not"),
        (r"(?:die )?(?:(?:richtige|korrekte|endgültige) )?antwort(?=\W{0,3}:)", "Answer"),
        (r"(?:die )?antwort(?= \(?[A-Z]\b)", "option"), (r"(?:die )?(?:möglichkeit|auswahl)", "option"),
        (r"ist (?:nicht|kein\w{0,2})", "is not"), (r"\bnicht\b", "not"), (r"sondern", "but"),
        (r"ist(?= (?:richtig|korrekt))", "is"), (r"\b(?:richtig|korrekt)\b(?=\W*$|\W*\n)", "correct"),
        (r"(?:weniger|kleiner|geringer) als", "less than"), (r"(?:mehr|größer) als", "more than"),
        (r"(?:mindestens|wenigstens)", "at least"), (r"(?:höchstens|maximal)", "at most"), (r"insgesamt", "in total"),
        (r"also|daher|folglich|somit|deshalb|demnach", "so"), (r"weil|denn", "because"),
        (r"könnte|vielleicht|möglicherweise", "could be"), (r"ich weiß (?:es )?nicht", "not sure"),
        (r"\boder\b", "or"),
    ],
    "it": [
        (r"non è vero", "it is not true"), (r"è vero", "it is true"), (r"scelgo(?: la)?", "I choose"),
        (r"milioni", "million"), (r"quasi", "nearly"),
        (r"(?:l')?opzione (?:corretta|giusta) è(?: la)?", "the answer is"),
        (r"(?:la )?risposta(?: (?:corretta|giusta|finale))*(?: (?:è|sarebbe))(?: la| il)?", "the answer is"),
        (r"(?:la )?risposta(?: (?:corretta|giusta|finale))* non è(?: la| il)?", "the answer is not"),
        (r"(?:la )?risposta(?: (?:corretta|giusta|finale))*(?=\W{0,3}:)", "Answer"),
        (r"(?:l')?opzione|la lettera", "option"), (r"non è(?: la| il)?", "is not"), (r"(?:ma|bensì)(?: la)?", "but"),
        (r"\bcorrett[ao]\b|\bgiust[ao]\b", "correct"), (r"(?:meno|minore) di", "less than"),
        (r"(?:più|maggiore) di", "more than"), (r"almeno", "at least"), (r"al massimo", "at most"),
        (r"quindi|perciò|dunque|pertanto", "so"), (r"in totale", "in total"), (r"potrebbe essere|forse", "could be"),
    ],
    "ru": [
        (r"это не (?:так|правда|верно)|это неверно|это неправда|неправда", "it is not true"),
        (r"это (?:правда|верно|так)", "it is true"), (r"(?:я )?выбираю(?: вариант| ответ)?", "I choose"),
        (r"ответ(?= [A-Z]\b)", "the answer is"), (r"почти", "nearly"), (r"миллион\w{0,3}", "million"),
        (r"(?:правильный|верный) вариант(?: ответа)?\s?[-—:]", "the answer is"),
        (r"(?:правильный |верный |окончательный )?ответ(?=\W{0,3}:)", "Answer"),
        (r"(?:правильный |верный )?ответ\s?[-—](?!\s?не\b)", "the answer is"),
        (r"(?:правильный |верный )?ответ\s?[-—]?\s?не\b", "the answer is not"), (r", а\b", ", but"),
        (r"\bвариант(?: ответа)?", "option"), (r"\bне менее|как минимум", "at least"),
        (r"\bне более|максимум", "at most"), (r"(?:меньше|менее)(?: чем)?", "less than"),
        (r"(?:больше|более)(?: чем)?", "more than"), (r"следовательно|значит|поэтому|таким образом|итак", "so"),
        (r"(?<!\w)не\b", "not"), (r"потому что|так как", "because"), (r"возможно|может быть", "could be"),
        (r"всего|итого", "in total"), (r"(?<=[A-D] )или(?= [A-D]\b)", "or"),
    ],
    "cjk": [
        (r"这(?:并)?不是真的|不是这样|違います|間違っています|そうではありません|아닙니다|틀렸습니다", " it is not true "),
        (r"这是真的|没错|そうです|その通りです|正しいです|맞습니다", " it is true "),
        (r"(?<=[\w\")\]])(?:です|である|だよ|입니다|이에요)(?=\W|$)", " "),
        (r"正确(?:的)?(?:选项|答案)(?:是|为|:)", " the answer is "),
        (r"(?P<x>(?<![A-Za-z])[A-Z]) ?[がは이가]? ?(?:正解|正しい|正答|答え|정답)(?!は|で(?:は|も)な|く)(?:です|である|입니다)?",
         " the answer is \\g<x> "),
        (r"(?:少于|小于|不到|低于|不足)", " less than "), (r"(?:多于|大于|超过|高于)", " more than "), (r"至少", " at least "),
        (r"至多|最多", " at most "), (r"不是(?= ?[A-Z]\b| ?\d)", " not "), (r"選択肢|选项", " option "),
        (r"答えは|正解は|答は|解答は", " the answer is "), (r"(?:정답|답)(?:은|는)", " the answer is "),
        (r"(?:したがって|よって|ゆえに|だから|따라서|그러므로)[,、]?", " so "),
        (r"(?P<x>[A-Z]|\d[\d.,]*) ?(?:ではなく|じゃなく|이 아니라|가 아니라)[,、]? ?", " not \\g<x>, but "),
        (r"(?P<x>\d[\d.,]*) ?(?:未満|미만)", " less than \\g<x> "), (r"(?P<x>\d[\d.,]*) ?(?:以上|이상)", " at least \\g<x> "),
        (r"(?P<x>\d[\d.,]*) ?(?:以下|이하)", " at most \\g<x> "), (r"かもしれません?|可能是|也许|或许|多分|たぶん", " could be "),
    ],
}  # fmt: skip


def _compiled(language: str) -> list[tuple[re.Pattern[str], str]]:
    return [
        (
            re.compile(pattern if language == "cjk" else rf"(?:(?<!\w)|(?=,))(?:{pattern})(?!\w)", re.IGNORECASE),
            replacement,
        )
        for pattern, replacement in _TABLES[language]
    ]


_TRANSLATIONS = {language: _compiled(language) for language in _TABLES}
_CJK = re.compile("[぀-ヿ㐀-鿿가-힣]")
_POINTS_FOR_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+)(?![\d.]?\d)")
_TRAILING_CURRENCY = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+)(?= \$(?!\w)| ?(?:€|EUR|Euro))")


def in_english(text: str) -> str:
    """The text with the words that decide how it is read translated; English text is returned as it is."""
    tail = text[-_MAX_CHARS:]
    if (
        "." in tail and tail.count("$") < 2
    ):  # a currency after the number is written where the point separates thousands
        tail = _TRAILING_CURRENCY.sub(_without_points, tail)
    languages = {_LANGUAGE_OF[word] for word in set(_WORD.findall(tail.lower())) & _LANGUAGE_OF.keys()}
    if phrase := _PHRASES.search(tail):
        languages.add(phrase.lastgroup or "es")
    if not tail.isascii() and _CJK.search(tail):
        languages.add("cjk")
    for language in sorted(languages):
        if language in _NUMBERS:
            tail = _number_words(language)(tail)
            if language not in ("fr", "ru"):
                tail = _POINTS_FOR_THOUSANDS.sub(_without_points, tail)
        for pattern, replacement in _TRANSLATIONS[language]:
            tail = pattern.sub(replacement, tail)
    return text[:-_MAX_CHARS] + tail


def _without_points(match: re.Match[str]) -> str:
    return match[1].replace(".", "")


def _english(number: int) -> str:
    tens, ones = divmod(number, 10)
    return " ".join([_ENGLISH_NUMBERS[18 + tens], *([_ENGLISH_NUMBERS[ones]] if ones else [])])


def _translator(language: str) -> Callable[[str], str]:
    words = dict(zip(_NUMBERS[language].split(), _ENGLISH_NUMBERS, strict=True))
    if language == "de":  # fünfunddreißig
        units = dict(list(words.items())[2:10]) | {"ein": "one"}
        tens = dict(list(words.items())[20:28])
        words |= {f"{one}und{ten}": f"{tens[ten]} {units[one]}" for one in units for ten in tens}
        _LANGUAGE_OF.update(dict.fromkeys(words.keys() - _ENGLISH_TOO - {"acht", "drei"}, "de"))
    if language == "fr":  # quarante-deux, soixante-douze, quatre-vingt-trois
        low = list(words.items())[1:20]
        for ten, start in (
            ("vingt", 20),
            ("trente", 30),
            ("quarante", 40),
            ("cinquante", 50),
            ("soixante", 60),
            ("quatre-vingt", 80),
        ):
            for value, (one, _) in enumerate(low, start=1):
                if value < 10 or start in (60, 80):
                    words[f"{ten}-{one}"] = _english(start + value)
    # One is an article in most of these languages.
    words = {word: number for word, number in words.items() if number != "one" or language == "de"}
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(words, key=len, reverse=True))})(?!\w|-\w)", re.IGNORECASE)
    joined = re.compile(r"\b((?:twen|thir|for|fif|six|seven|eigh|nine)ty) (?:y|e|et) (?=(?:two|three|four|five|six|"
                        r"seven|eight|nine)\b)")  # fmt: skip
    return lambda text: joined.sub(r"\1 ", pattern.sub(lambda match: words[match.group().lower()], text))


_TRANSLATORS = {language: _translator(language) for language in _NUMBERS}


def _number_words(language: str) -> Callable[[str], str]:
    return _TRANSLATORS[language]
