"""Which sites of two logs differ, and whether that is more than a run differs from its own repeat.

Sites (function, SASS, operand) are compared, not lines: two runs of one baseline differed by 13 % in lines
and by 0.5 % in sites. Each site has a grade, by the worst that it saw: thousands of equal sites do not
outvote one that begins to make a NaN, or to store one. Without a complete repeat of the baseline there is no
noise floor, and only a grade that the baseline does not have at all is judged.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from lab.core.words import plural
from lab.rooms.nan.nixnan.grammar import KINDS, category, is_store
from lab.rooms.nan.nixnan.log import Instruction, Log, Site, instructions

GRADES = ("near zero", "infinite", "NaN", "NaN born", "NaN stored")
"""What a site saw, harmless first: subnormal or a division by zero; an infinity; a NaN in a source, or handed
on; a NaN in the result alone; a NaN written to memory."""
INFINITE, NAN, BORN, STORED = 1, 2, 3, 4
FACTOR = 2.0  # a difference is one beyond this many times what the baseline's own repeat shows
ROWS = 500
_REGISTERS = re.compile(r"\b(U?R|U?P)\d+\b")
Key = tuple[str, str, int | None]


def diff(a: Log, b: Log, noise: Log | None = None) -> dict[str, Any]:
    """Compare the sites of two logs; `noise` is a second run of the program of `a`.

    Keys: a, b, noise (file, integrity, sites); sites_a, sites_b, common, jaccard; grades, a row per grade
    from an infinity up: a, b, new (sites of it only in b), floor (the same between `a` and its repeat; None
    without one); appeared, vanished (rows, at most ROWS, and their numbers in appeared_count and so on), the
    numbers of changed and moved sites; noise {distance, graded_distance}; distance (1 - jaccard),
    graded_distance (a site of another grade is another), beyond_noise (None: not judged), twins, verdict,
    warnings. `moved` are appeared and vanished sites alike except for their registers.
    """
    table_a, table_b = _table(a), _table(b)
    floor = noise if noise and noise.integrity == a.integrity == "complete" else None
    flickering = _table(floor).keys() ^ table_a.keys() if floor else set()
    new, gone = table_b.keys() - table_a.keys(), table_a.keys() - table_b.keys()
    appeared, vanished = new - flickering, gone - flickering
    moved = _moved([table_b[key] for key in appeared], [table_a[key] for key in vanished])
    common = table_a.keys() & table_b.keys()
    result: dict[str, Any] = {
        "a": _identity(a),
        "b": _identity(b),
        "sites_a": len(table_a),
        "sites_b": len(table_b),
        "common": len(common),
        "jaccard": _jaccard(table_a.keys(), table_b.keys()),
        "distance": 1 - _jaccard(table_a.keys(), table_b.keys()),
        "graded_distance": 1 - _jaccard(graded(a).items(), graded(b).items()),
        **_rows("appeared", [table_b[key] for key in appeared]),
        **_rows("vanished", [table_a[key] for key in vanished]),
        "changed_count": sum(table_a[key].kinds.keys() != table_b[key].kinds.keys() for key in common),
        "moved_count": moved,
        "grades": _grade_rows(graded(a), graded(b), graded(floor) if floor else None),
        "noise": None,
        "twins": {**a.twins, **b.twins},
        "warnings": _warnings(a, b, noise),
    }
    if floor:
        distance = 1 - _jaccard(table_a.keys(), _table(floor).keys())
        result["noise"] = {
            **_identity(floor),
            "distance": distance,
            "graded_distance": 1 - _jaccard(graded(a).items(), graded(floor).items()),
        }
    result["beyond_noise"], result["verdict"] = _verdict(result)
    return result


def _table(log: Log | None) -> dict[Key, Site]:
    """Sites by key, without device functions that repeat a kernel's entries."""
    return {site.key: site for site in log.sites if site.function not in log.twins} if log else {}


def _jaccard(a: Any, b: Any) -> float:
    """Common sites over all; 1 for two logs without any."""
    together = len(a | b)
    return len(a & b) / together if together else 1.0


def graded(log: Log) -> dict[Key, int]:
    """Each site's grade, an index of GRADES, without device functions that repeat a kernel's entries."""
    return {
        site.key: _grade(instruction, operand)
        for instruction in instructions(log)
        for operand, site in instruction.sites.items()
    }


def _grade(instruction: Instruction, operand: int | None) -> int:
    kinds = instruction.kinds(operand)
    if "NaN" not in kinds:
        return int(bool(kinds & {"infinity", "-infinity"}))
    if is_store(instruction.opcode):
        return STORED
    return BORN if operand == 0 and instruction.class_of("NaN") == "birth" else NAN


def _grade_rows(a: dict[Key, int], b: dict[Key, int], noise: dict[Key, int] | None) -> list[dict[str, Any]]:
    """One row per grade from an infinity up, the worst first."""
    rows = []
    for grade in (STORED, BORN, NAN, INFINITE):
        new = _risen(a, b, grade) if noise is None else _risen(a, b, grade) - noise_of(a, noise, grade)
        rows.append(
            {
                "grade": GRADES[grade],
                "a": sum(site_grade >= grade for site_grade in a.values()),
                "b": sum(site_grade >= grade for site_grade in b.values()),
                "new": len(new),
                "floor": None if noise is None else len(noise_of(a, noise, grade)),
            }
        )
    return rows


def noise_of(a: dict[Key, int], noise: dict[Key, int], grade: int) -> set[Key]:
    """Sites that are of this grade or worse in only one of two equal runs."""
    return _risen(a, noise, grade) | _risen(noise, a, grade)


def _risen(a: dict[Key, int], b: dict[Key, int], grade: int) -> set[Key]:
    """Sites of this grade or worse in `b` that are of a lower one, or absent, in `a`."""
    return {key for key, grade_b in b.items() if grade_b >= grade > a.get(key, -1)}


def _worse(result: dict[str, Any]) -> list[str]:
    """What is new in B beyond doubt, worst first: a grade that A has nowhere, or more of it than A's noise.

    Infinities, and NaN in sources, come in thousands: there the share of differing sites decides, except
    where A has none.
    """
    worse = []
    for row in result["grades"]:
        none_before = not row["a"] and not row["floor"]
        counted = row["grade"] in (GRADES[BORN], GRADES[STORED]) and row["floor"] is not None
        if row["new"] and (none_before or (counted and row["new"] > FACTOR * row["floor"])):
            worse.append(
                f"{plural(row['new'], 'site')} of grade `{row['grade']}` or worse that A does not have "
                f"(A has {row['a']}, B {row['b']})"
            )
    return worse


def _verdict(result: dict[str, Any]) -> tuple[bool | None, str]:
    distance, noise = result["graded_distance"], result["noise"]
    common = f"{plural(result['common'], 'common site')} of {result['sites_a']:,} and {result['sites_b']:,}"
    whole_a, whole_b = (result[side]["integrity"] == "complete" for side in "ab")
    worse = _worse(result)
    if worse and whole_a:
        strength = "More than the noise" if noise else "New in B"
        return True, f"{common}. {strength}: {'; '.join(worse)}."
    if not (whole_a and whole_b):
        incomplete = " and ".join(name for name, whole in (("A", whole_a), ("B", whole_b)) if not whole)
        return None, f"{common}. Not judged: {incomplete} did not come to its end, so sites may be missing."
    if noise is None:
        return (
            None,
            f"{common}. Not judged: name a complete repeat of the first run (--noise) as noise floor.",
        )
    if distance == 0:
        remark = (
            f"; {plural(result['changed_count'], 'site')} of other kinds" if result["changed_count"] else ""
        )
        return False, f"{common}: the same sites, none of another grade{remark}."
    floor = noise["graded_distance"]
    compared = (
        f"{common}: {100 * distance:.1f} % of all sites or their grades differ; the baseline's own repeat "
        f"differs by {100 * floor:.1f} %"
    )
    if distance <= FACTOR * floor:
        return False, f"{compared}. Within noise."
    change = f"{result['appeared_count']} appeared, {result['vanished_count']} vanished"
    return True, f"{compared}. More than the noise: {change}, {result['changed_count']} of other kinds."


def _moved(appeared: list[Site], vanished: list[Site]) -> int:
    """Appeared sites that match a vanished one except for its registers: the same code, compiled again."""
    new, gone = (Counter(_shape(site) for site in sites) for sites in (appeared, vanished))
    return sum((new & gone).values())


def _shape(site: Site) -> tuple[str, str, int | None, tuple[str, ...]]:
    return site.function, _REGISTERS.sub(r"\1", site.sass), site.operand, tuple(sorted(site.kinds))


def _rows(name: str, sites: list[Site]) -> dict[str, Any]:
    """The sites with NaN first, then infinities, then by name."""
    kind_sites = Counter(kind for site in sites for kind in site.kinds)
    order = sorted(
        sites, key=lambda site: ("NaN" not in site.kinds, set(site.kinds) == {"subnormal"}, str(site.key))
    )
    return {
        name: [_row(site) for site in order[:ROWS]],
        f"{name}_count": len(sites),
        f"{name}_kinds": {kind: kind_sites[kind] for kind in KINDS if kind_sites[kind]},
    }


def _row(site: Site) -> dict[str, Any]:
    return {
        "function": site.function,
        "category": category(site.function),
        "sass": site.sass,
        "operand": site.operand,
        "type": site.type,
        "kinds": site.kinds,
        "file": site.file,
        "line": site.line,
        "raw": site.raw,
    }


def _identity(log: Log) -> dict[str, Any]:
    return {
        "file": log.file,
        "integrity": log.integrity,
        "sites": log.site_count,
        "error_lines": log.error_lines,
    }


def _warnings(a: Log, b: Log, noise: Log | None) -> list[str]:
    warnings = []
    for name, log in (("A", a), ("B", b), ("the noise run", noise)):
        if log and log.integrity != "complete":
            so = "it gives no noise floor" if log is noise else "a site missing from it proves nothing"
            warnings.append(f"{name} is {log.integrity}: {so}. {log.reasons[0]}")
        if log and log.site_count > len(log.sites):
            sites = f"{len(log.sites)} of {log.site_count} sites"
            warnings.append(f"{name} lists {sites}: the others are not compared.")
    for name, same in {**a.twins, **b.twins}.items():
        warnings.append(f"{name} repeats the entries of {same}: compared once.")
    return warnings
