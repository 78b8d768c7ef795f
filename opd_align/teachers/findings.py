"""What a check found: one line with what is wrong and what to do, and the report of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opd_align.types import OpdAlignError

Level = Literal["OK", "WARN", "FAIL", "SKIP"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        level: `OK`, `WARN` (results may mislead), `FAIL` (do not start) or `SKIP` (could not be checked).
        check: The name of the check.
        found: What was found.
        remedy: What to do; empty if there is nothing to do.
    """

    level: Level
    check: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.found}. {self.remedy[:1].upper()}{self.remedy[1:]}" if self.remedy else self.found
        # One printable line, whatever names and error messages contain.
        line = "".join(letter if letter.isprintable() else " " for letter in text)
        return f"{self.level:4}  {self.check:17} {' '.join(line.split())}"


@dataclass(frozen=True)
class SetupReport:
    """All findings of a setup, in the order of the checks; printed, one line per finding and a summary.

    Args:
        findings: The findings.
    """

    findings: Sequence[Finding] = field(default_factory=tuple)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.summary])

    @property
    def summary(self) -> str:
        """The number of findings per level."""
        counts = {level: sum(each.level == level for each in self.findings) for level in ("FAIL", "WARN", "SKIP", "OK")}
        plural = "" if counts["WARN"] == 1 else "s"
        words = {"FAIL": "failed", "WARN": f"warning{plural}", "SKIP": "not checked", "OK": "passed"}
        return ", ".join(f"{count} {words[level]}" for level, count in counts.items() if count) or "nothing was checked"

    def exit_code(self, *, strict: bool = False) -> int:
        """1 if a check failed (with `strict` also for warnings), otherwise 0."""
        bad = ("FAIL", "WARN") if strict else ("FAIL",)
        return int(any(each.level in bad for each in self.findings))

    def raise_for_failures(self, *, strict: bool = False) -> None:
        """Raises `OpdAlignError` with the failed checks (with `strict` also the warnings), if there are any."""
        if self.exit_code(strict=strict):
            bad = ("FAIL", "WARN") if strict else ("FAIL",)
            raise OpdAlignError("\n".join(str(each) for each in self.findings if each.level in bad))


def guarded(check: str, run: Callable[[], Iterable[Finding] | Finding]) -> list[Finding]:
    """The findings of a check; an error in it is a finding too, so that the other checks still run."""
    from opd_align.backends.probes import ProbeUnavailable

    try:
        found = run()
        return [found] if isinstance(found, Finding) else list(found)
    except ProbeUnavailable as error:
        return [Finding("SKIP", check, f"not checked: {error}")]
    except OpdAlignError as error:
        return [Finding("FAIL", check, str(error))]
    except Exception as error:  # libraries raise what they like; the other checks are still of use
        return [Finding("FAIL", check, f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}")]
