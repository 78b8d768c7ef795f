"""Words of other languages that decide how an answer is read; used by `languages`."""

from __future__ import annotations

ENGLISH_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand"
)
"""The order of the numbers in `NUMBERS`."""

NUMBERS = {
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis "
    "diecisiete dieciocho diecinueve veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa cien "
    "mil",
    "pt": "zero um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze dezesseis dezessete "
    "dezoito dezenove vinte trinta quarenta cinquenta sessenta setenta oitenta noventa cem mil",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept "
    "dix-huit dix-neuf vingt trente quarante cinquante soixante soixante-dix quatre-vingts quatre-vingt-dix "
    "cent mille",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert "
    "tausend",
    "it": "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici "
    "sedici diciassette diciotto diciannove venti trenta quaranta cinquanta sessanta settanta ottanta novanta "
    "cento mille",
    "ru": "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать "
    "четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать двадцать тридцать сорок "
    "пятьдесят шестьдесят семьдесят восемьдесят девяносто сто тысяча",
}

RECOGNISED = {
    "es": "equivocada quizás quizá respuesta opción correcta correcto incorrecta incorrecto sino según entonces "
    "verdadero "
    "verdadera porque está verdad cierto elijo escojo dólares millones casi más menos gana vende tiene "
    "ganancia número",
    "pt": "talvez resposta opção alternativa correta correto incorreta incorreto não então portanto segundo "
    "verdadeiro verdadeira verdade escolho quase milhões menos são têm juntas lucro número há",
    "fr": "mauvaise réponds peut choisis presque réponse reponse pas donc selon vrai faux moins bonne choix sont gagne "
    "reste",
    "de": "vielleicht ich für stimmt wähle knapp millionen milliarden antwort richtig richtige falsch nicht sondern "
    "laut ist weniger mehr mindestens höchstens lautet ergebnis gewinn verdient sind insgesamt",
    "it": "forse scelgo milioni risposta opzione corretta giusta quindi vero meno più sono guadagna numero perciò",
    "ru": "неправильный неверный может возможно это сто выбираю почти не ответ вариант правильный верный верно "
    "неверно следовательно "
    "значит поэтому меньше больше менее более итого",
    "more": "antwoord svaret svar cevap yanıt odpowiedź đáp jawaban jawabannya الإجابة الجواب",
}
"""Words by which a language is recognised; none of them is an English word."""

ENGLISH_TOO = (
    "zero once six seize dix mille cent null elf due sei sete tres mil un one uno trente um sette oito onze doze nove "
    "otto tre"
)
"""Numbers by which no language is recognised."""

# Translations, in this order: longer expressions first.
TABLES = {
    "es": [
        (r"(?<=[A-Z] )es (?:la )?(?:respuesta |opción )?correcta", "is correct"),
        ("(?:respuesta|opción) (?:incorrecta|equivocada|errónea)", "wrong answer"),
        ("no es (?:verdad|cierto)", "it is not true"),
        ("es (?:verdad|cierto)", "it is true"),
        ("(?:yo )?(?:elijo|escojo|elegiría)(?: la)?(?: opción| letra| respuesta)?", "I choose"),
        ("casi", "nearly"),
        ("millones", "million"),
        (r"(?<=\d )mil", "thousand"),
        ("(?:la )?(?:opción|letra|alternativa) correcta es(?: la)?(?: opción| letra)?", "the answer is"),
        (r"(?:la )?respuesta(?: (?:correcta|final))*(?: (?:es|sería))(?! no\b)(?: la| el)?", "the answer is"),
        ("(?:la )?respuesta(?: (?:correcta|final))* no es(?: la| el)?", "the answer is not"),
        (r"(?:la )?respuesta(?: (?:correcta|final))*(?=\W{0,3}:)", "Answer"),
        (r"(?:la )?respuesta(?= \(?[A-Z]\b)", "option"),
        (r"(?<!no )es(?: la)?(?= (?:(?:opción|alternativa|letra) )?[A-Z]\b)", "it is"),
        ("(?:la )?(?:opción|letra|alternativa)(?: correcta)?", "option"),
        ("sino(?: que)?(?: es)?(?: la| el)?", "but"),
        ("no (?:es|son)(?: la| el)?", "is not"),
        (r"es(?= correct[ao]\b)", "is"),
        (r"\bincorrect[ao]s?", "incorrect"),
        (r"\bcorrect[ao]s?", "correct"),
        ("(?:menos|menor(?:es)?) (?:de|que)", "less than"),
        ("(?:más|mayor(?:es)?) (?:de|que)", "more than"),
        ("(?:al menos|como mínimo|por lo menos)", "at least"),
        ("(?:como máximo|a lo sumo)", "at most"),
        ("por (?:lo )?tanto|así que|entonces|en consecuencia", "so"),
        ("porque|ya que", "because"),
        ("podría(?:n)? ser|puede que sea|quizás?|tal vez", "could be"),
        ("en total", "in total"),
        ("no (?:lo )?sé|no estoy segur[oa]", "not sure"),
        (r"(?<=[A-D] )o(?= (?:la )?[A-D]\b)", "or"),
    ],
    "pt": [
        (r"(?<=[A-Z] )(?:está|é)(?: a)? (?:resposta |opção )?(?:correta|certa)", "is correct"),
        ("(?:resposta|opção|alternativa) (?:incorreta|errada)", "wrong answer"),
        ("não é verdade", "it is not true"),
        ("é verdade", "it is true"),
        ("quase", "nearly"),
        ("(?:eu )?escolho(?: a)?(?: opção| letra| resposta| alternativa)?", "I choose"),
        ("milhões", "million"),
        (r"(?<=\d )mil", "thousand"),
        ("(?:a )?(?:opção|letra|alternativa) (?:correta|certa) é(?: a)?(?: opção| letra)?", "the answer is"),
        ("(?:a )?resposta(?: (?:correta|certa|final))*(?: (?:é|seria))(?: a| o)?", "the answer is"),
        ("(?:a )?resposta(?: (?:correta|certa|final))* não é(?: a| o)?", "the answer is not"),
        (r"(?:a )?resposta(?: (?:correta|certa|final))*(?=\W{0,3}:)", "Answer"),
        ("(?:a )?(?:opção|letra|alternativa)(?: correta| certa)?", "option"),
        ("(?:mas|e) sim(?: a| o)?", "but"),
        ("não (?:é|são)(?: a| o)?", "is not"),
        (r"(?<!não )é(?: a)?(?= (?:(?:opção|alternativa|letra|option) )?[A-Z]\b)", "it is"),
        (r"é(?= corret[ao]\b)", "is"),
        (r"\bincorret[ao]s?", "incorrect"),
        (r"\bcorret[ao]s?", "correct"),
        ("(?:menos|menor) (?:de|do que|que)", "less than"),
        ("(?:mais|maior) (?:de|do que|que)", "more than"),
        ("(?:pelo menos|no mínimo|ao menos)", "at least"),
        ("(?:no máximo)", "at most"),
        ("portanto|logo|então|por isso", "so"),
        ("porque|já que|pois", "because"),
        ("pode(?:ria)? ser|talvez", "could be"),
        ("no total|ao todo", "in total"),
        ("não sei|não tenho certeza", "not sure"),
        (r"(?<=[A-D] )ou(?= (?:a )?[A-D]\b)", "or"),
    ],
    "fr": [
        ("mauvaise r[ée]ponse|r[ée]ponse (?:incorrecte|fausse|erronée)", "wrong answer"),
        ("je (?:réponds|dis)(?: par)?", "I answer"),
        ("ce n'est pas (?:exact|vrai|juste|le cas)", "it is not true"),
        ("c'est (?:exact|vrai|juste)", "it is true"),
        ("(?:je )?(?:choisis|prends)(?: la| le)?(?: réponse| lettre)?|je dirais(?: la| le)?", "I choose"),
        (r"c'est(?: la| le)?(?= [A-Z]\b)", "it is"),
        ("presque", "nearly"),
        ("millions", "million"),
        (r"(?<=[A-Z] )est (?:la )?(?:bonne réponse|réponse correcte|bonne|correcte)", "is correct"),
        (r"(?:la )?(?:bonne )?r[ée]ponse(?: (?:correcte|finale))*(?: (?:est|serait))(?! pas\b)(?: la| le|"
         " l')?", "the answer is"),
        ("(?:la )?(?:bonne )?r[ée]ponse(?: (?:correcte|finale))* n'est pas(?: la| le)?", "the answer is not"),
        (r"(?:la )?(?:bonne )?r[ée]ponse(?: (?:correcte|finale))*(?=\W{0,3}:)", "Answer"),
        (r"(?:la )?(?:bonne )?r[ée]ponse(?= \(?[A-Z]\b)", "option"),
        ("(?:l'option|le choix|la lettre)", "option"),
        ("(?:ce )?n'est pas(?: la| le)?", "is not"),
        ("mais(?: plutôt)?(?: la| le)?", "but"),
        (r"est(?= correcte?\b)", "is"),
        (r"\bincorrecte?s?\b", "incorrect"),
        (r"\bcorrecte?s?\b", "correct"),
        ("(?:moins de|moins que|inférieure? à)", "less than"),
        ("(?:plus de|plus que|supérieure? à)", "more than"),
        ("au moins", "at least"),
        ("(?:au plus|au maximum)", "at most"),
        ("au total|en tout", "in total"),
        ("donc|par conséquent|ainsi", "so"),
        ("parce que|car|puisque", "because"),
        ("c'est", "it is"),
        ("pourrait être|peut-être", "could be"),
        ("je ne sais pas", "not sure"),
        (r"(?<=[A-D] )ou(?= (?:la )?[A-D]\b)", "or"),
    ],
    "de": [
        ("falsche antwort", "wrong answer"),
        (r"(?:also|daher|somit|folglich) ist(?: antwort| option)? (?P<x>\(?[A-Z]\)?) (?:richtig|korrekt)",
         r"so the answer is \g<x>"),
        ("das (?:stimmt|trifft) nicht(?: zu)?", "it is not true"),
        ("das stimmt|das trifft zu", "it is true"),
        ("ich (?:wähle|nehme|entscheide mich für)(?: antwort| option)?", "I choose"),
        ("beinahe|knapp", "nearly"),
        ("millionen", "million"),
        ("milliarden", "billion"),
        (r"(?:die )?richtige (?:option|lösung|wahl) ist|richtig ist(?= (?:\W{0,3}[A-Z]\b|option|antwort)"
         ")", "the answer is"),
        (r"es ist(?= [A-Z]\b)", "it is"),
        (r"(?:die )?(?:(?:richtige|korrekte|endgültige) )?antwort (?:ist|lautet|wäre)(?! nicht\b)", "the answer is"),
        ("(?:die )?(?:(?:richtige|korrekte|endgültige) )?antwort (?:ist|lautet) nicht", "the answer is not"),
        (r"(?:die )?(?:(?:richtige|korrekte|endgültige) )?antwort(?=\W{0,3}:)", "Answer"),
        (r"(?:die )?antwort(?= \(?[A-Z]\b)", "option"),
        ("(?:die )?(?:möglichkeit|auswahl)", "option"),
        (r"ist (?:nicht|kein\w{0,2})", "is not"),
        (r"\bnicht\b", "not"),
        ("sondern", "but"),
        ("ist(?= (?:richtig|korrekt))", "is"),
        (r"\b(?:richtig|korrekt)\b(?=\W*$|\W*\n|[.,!] )", "correct"),
        ("(?:weniger|kleiner|geringer) als", "less than"),
        ("(?:mehr|größer) als", "more than"),
        ("(?:mindestens|wenigstens)", "at least"),
        ("(?:höchstens|maximal)", "at most"),
        ("insgesamt", "in total"),
        ("also|daher|folglich|somit|deshalb|demnach", "so"),
        ("weil|denn", "because"),
        ("könnte|vielleicht|möglicherweise", "could be"),
        ("ich weiß (?:es )?nicht", "not sure"),
        (r"\boder\b", "or"),
    ],
    "it": [
        (r"(?<=[A-Z] )è (?:la )?(?:risposta |opzione )?(?:corretta|giusta|esatta)", "is correct"),
        ("risposta (?:sbagliata|errata|scorretta)", "wrong answer"),
        ("non è vero", "it is not true"),
        ("è vero", "it is true"),
        ("scelgo(?: la)?", "I choose"),
        ("milioni", "million"),
        ("quasi", "nearly"),
        ("(?:l')?opzione (?:corretta|giusta) è(?: la)?", "the answer is"),
        ("(?:la )?risposta(?: (?:corretta|giusta|finale))*(?: (?:è|sarebbe))(?: la| il)?", "the answer is"),
        ("(?:la )?risposta(?: (?:corretta|giusta|finale))* non è(?: la| il)?", "the answer is not"),
        (r"(?:la )?risposta(?: (?:corretta|giusta|finale))*(?=\W{0,3}:)", "Answer"),
        ("(?:l')?opzione|la lettera", "option"),
        ("non è(?: la| il)?", "is not"),
        (r"(?<!non )è la(?= [A-Z]\b)", "it is"),
        ("(?:ma|bensì)(?: la)?", "but"),
        (r"\bcorrett[ao]\b|\bgiust[ao]\b", "correct"),
        ("(?:meno|minore) di", "less than"),
        ("(?:più|maggiore) di", "more than"),
        ("almeno", "at least"),
        ("al massimo", "at most"),
        ("quindi|perciò|dunque|pertanto", "so"),
        ("in totale", "in total"),
        ("potrebbe essere|forse", "could be"),
    ],
    "ru": [
        ("(?:неправильный|неверный|ошибочный) (?:ответ|вариант)", "wrong answer"),
        ("это не (?:так|правда|верно)|это неверно|это неправда|неправда", "it is not true"),
        ("это (?:правда|верно|так)", "it is true"),
        ("(?:я )?выбираю(?: вариант| ответ)?", "I choose"),
        (r"ответ(?= [A-Z]\b)", "the answer is"),
        ("почти", "nearly"),
        (r"миллион\w{0,3}", "million"),
        (r"(?:правильный|верный) вариант(?: ответа)?\s?[-—:]", "the answer is"),
        (r"(?:правильный |верный |окончательный )?ответ(?=\W{0,3}:)", "Answer"),
        (r"(?:правильный |верный )?ответ\s?[-—](?!\s?не\b)", "the answer is"),
        (r"(?:правильный |верный )?ответ\s?[-—]?\s?не\b", "the answer is not"),
        (r", а\b", ", but"),
        (r"\bвариант(?: ответа)?", "option"),
        (r"\bне менее|как минимум", "at least"),
        (r"\bне более|максимум", "at most"),
        ("(?:меньше|менее)(?: чем)?", "less than"),
        ("(?:больше|более)(?: чем)?", "more than"),
        ("следовательно|значит|поэтому|таким образом|итак", "so"),
        (r"(?<!\w)не\b", "not"),
        ("потому что|так как", "because"),
        ("возможно|может быть", "could be"),
        ("всего|итого", "in total"),
        (r"(?<=[A-D] )или(?= [A-D]\b)", "or"),
    ],
    "cjk": [
        (r"^\s*不(?:是的?)?(?=[,.])", " No"),
        ("(?:答案|回答)是否定的", " the answer is no "),
        ("(?:答案|回答)是肯定的", " the answer is yes "),
        (r"(?P<x>(?<![A-Za-z])[A-Z]) ?번", r"\g<x> "),
        ("(?:错误|不正确)(?:的)?(?:答案|选项)|不正解|오답", " wrong answer "),
        ("不(?:应|能|该|可|要)(?:该|以)?(?:选|選)(?:择)?", " not "),
        (r"(?P<x>(?<![A-Za-z])[A-Z]|\d[\d.,]*) ?(?:ではありません|ではない|じゃない|でない|"
         "[가이] ?아닙니다|[가이] ?아니다|[가이] ?아니에요|는 아닙니다)", r" not \g<x> "),
        ("这(?:并)?不是真的|不是这样|違います|間違っています|そうではありません|아닙니다|"
         "틀렸습니다", " it is not true "),
        ("这是真的|没错|そうです|その通りです|正しいです|맞습니다", " it is true "),
        (r"(?:(?<=[\w\")\]])|(?<=[\w\")\]] ))(?:です|である|だよ|입니다|이에요)(?=\W|$)", " "),
        ("正确(?:的)?(?:选项|答案)(?:是|为|:)", " the answer is "),
        ("(?P<x>(?<![A-Za-z])[A-Z]) ?[がは이가]? ?(?:正解|正しい|正答|答え|정답)(?!は|で(?:は|も)な|く)"
         "(?:です|である|입니다)?", r" the answer is \g<x> "),
        ("(?:少于|小于|不到|低于|不足)", " less than "),
        ("(?:多于|大于|超过|高于)", " more than "),
        ("至少", " at least "),
        ("至多|最多", " at most "),
        (r"不是(?= ?[A-Z]\b| ?\d)", " not "),
        ("選択肢|选项", " option "),
        ("答えは|正解は|答は|解答は", " the answer is "),
        ("(?:정답|답)(?:은|는)", " the answer is "),
        ("(?:つまり|したがって|よって|ゆえに|だから|따라서|그러므로)[,、]?", " so "),
        (r"(?P<x>[A-Z]|\d[\d.,]*) ?(?:ではなく|じゃなく|이 아니라|가 아니라)[,、]? ?", r" not \g<x>, but "),
        (r"(?P<x>\d[\d.,]*) ?(?:未満|미만)", r" less than \g<x> "),
        (r"(?P<x>\d[\d.,]*) ?(?:以上|이상)", r" at least \g<x> "),
        (r"(?P<x>\d[\d.,]*) ?(?:以下|이하)", r" at most \g<x> "),
        ("かもしれません?|可能是|也许|或许|多分|たぶん", " could be "),
    ],
    "more": [
        (r"(?:het )?(?:juiste |goede )?antwoord is niet", "the answer is not"),
        (r"(?:het )?(?:juiste |goede )?antwoord is", "the answer is"),
        (r"(?:rätt |riktigt )?svar(?:et)? är inte", "the answer is not"),
        (r"(?:rätt |riktigt )?svar(?:et)? är", "the answer is"),
        (r"(?:doğru )?(?:cevap|yanıt)(?= [A-Z]\b(?! değil))", "the answer is"),
        (r"(?:prawidłowa |poprawna )?odpowiedź to", "the answer is"),
        (r"(?:đáp án|câu trả lời)(?: đúng)? (?:không phải|không) là", "the answer is not"),
        (r"(?:đáp án|câu trả lời)(?: đúng)? là", "the answer is"),
        (r"jawaban(?:nya)?(?: yang benar)? bukan(?:lah)?", "the answer is not"),
        (r"jawaban(?:nya)?(?: yang benar)? adalah", "the answer is"),
        (r"(?:الإجابة|الجواب)(?: الصحيحة| الصحيح)? (?:ليست|ليس)", "the answer is not"),
        (r"(?:الإجابة|الجواب)(?: الصحيحة| الصحيح)? (?:هي|هو)", "the answer is"),
    ],
}  # fmt: skip
"""Patterns and what stands for them in English, by language."""
