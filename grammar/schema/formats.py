"""The formats of draft 2020-12 as whole-text regexes; several regexes of one format must all match.

Sources: RFC 3339 (date and time, with leap seconds only where UTC is 23:59:60), ISO 8601 as RFC 3339 appendix A quotes
it (duration), RFC 5321 (email), RFC 4291 (ipv6), RFC 3986 and 3987 (uri, iri), RFC 6570 (uri-template).
"""

from __future__ import annotations

__all__ = ["FORMATS", "NOT_REGULAR"]

# Refused. No regular expression says the first four exactly (a length limit beside Punycode tables, a grammar that
# nests); the pointers may hold any control character, and no backend writes those.
NOT_REGULAR = frozenset({"hostname", "idn-hostname", "idn-email", "regex", "json-pointer", "relative-json-pointer"})

YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
BY_FOUR = "(?:0[48]|[2468][048]|[13579][26])"
DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = f"(?:{YEAR}-{DAYS}|(?:[0-9]{{2}}{BY_FOUR}|{BY_FOUR}00)-02-29)"

HOUR, MINUTE, FRACTION = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]", "(?:\\x{2E}[0-9]+)?"
PLAIN = f"{HOUR}:{MINUTE}:{MINUTE}{FRACTION}(?:[zZ]|[+-]{HOUR}:{MINUTE})"


def _leap_second(parts: list[str]) -> str:
    return "(?:" + "|".join([PLAIN, f"23:59:60{FRACTION}[zZ]", *parts]) + ")"


# A leap second is 23:59:60 in UTC: the local hour follows from the offset's hour, the local minute from its minute.
# One regex ties the hours together, the other the minutes; both must match.
LEAP_HOURS = _leap_second(
    [f"{hour:02}:{MINUTE}:60{FRACTION}\\+{hour:02}:(?:0[1-9]|[1-5][0-9])" for hour in range(24)]
    + [f"{(hour - 1) % 24:02}:59:60{FRACTION}\\+{hour:02}:00" for hour in range(24)]
    + [f"{23 - hour:02}:{MINUTE}:60{FRACTION}-{hour:02}:{MINUTE}" for hour in range(24)]
)
LEAP_MINUTES = _leap_second(
    [f"{HOUR}:{(minute - 1) % 60:02}:60{FRACTION}\\+{HOUR}:{minute:02}" for minute in range(60)]
    + [f"{HOUR}:{59 - minute:02}:60{FRACTION}-{HOUR}:{minute:02}" for minute in range(60)]
)

DURATION_DATE = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
DURATION_TIME = "T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?)"

BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = f"{BYTE}(?:\\x{{2E}}{BYTE}){{3}}"
GROUP = "[0-9a-fA-F]{1,4}"
LAST = f"(?:{GROUP}:{GROUP}|{IPV4})"
IPV6 = "(?:" + "|".join(
    [f"(?:{GROUP}:){{6}}{LAST}"]
    + [f"(?:(?:{GROUP}:){{0,{left}}}{GROUP})?::(?:{GROUP}:){{{4 - left}}}{LAST}" for left in range(5)]
    + [f"::(?:{GROUP}:){{5}}{LAST}"]
    + [f"(?:(?:{GROUP}:){{0,{left}}}{GROUP})?::(?:{GROUP}:){{0,{max(0, 3 - left)}}}{LAST}" for left in range(4)]
    + [f"(?:(?:{GROUP}:){{0,5}}{GROUP})?::{GROUP}", f"(?:(?:{GROUP}:){{0,6}}{GROUP})?::"]
) + ")"  # fmt: skip

ATOM = "[a-zA-Z0-9!#$%&'*+/=?\\x{5E}_`{|}~-]+"
QUOTED = '"(?:[\\x{20}\\x{21}\\x{23}-\\x{5B}\\x{5D}-\\x{7E}]|\\x{5C}[\\x{20}-\\x{7E}])*"'
LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
EMAIL = (
    f"(?:{ATOM}(?:\\x{{2E}}{ATOM})*|{QUOTED})@(?:{LABEL}(?:\\x{{2E}}{LABEL})*|\\x{{5B}}(?:{IPV4}|IPv6:{IPV6})\\x{{5D}})"
)

UCS = "\\x{A0}-\\x{D7FF}\\x{F900}-\\x{FDCF}\\x{FDF0}-\\x{FFEF}" + "".join(
    f"\\x{{{plane:X}{'1' if plane == 14 else '0'}000}}-\\x{{{plane:X}FFFD}}" for plane in range(1, 15)
)
PRIVATE = "\\x{E000}-\\x{F8FF}\\x{F0000}-\\x{FFFFD}\\x{100000}-\\x{10FFFD}"
ESCAPED = "%[0-9a-fA-F]{2}"
SCHEME = "[a-zA-Z][a-zA-Z0-9+\\x{2E}-]*"


def _uri(extra: str, private: str, relative: bool) -> str:
    """RFC 3986 with further characters in names and paths (RFC 3987), with or without the relative forms."""
    plain = f"a-zA-Z0-9\\x{{2E}}_~!$&'()*+,;={extra}-"
    name, user, path = (f"(?:[{more}{plain}]|{ESCAPED})" for more in ("", ":", ":@"))
    segment = f"(?:[@{plain}]|{ESCAPED})"
    literal = f"\\x{{5B}}(?:{IPV6}|[vV][0-9a-fA-F]+\\x{{2E}}[:a-zA-Z0-9\\x{{2E}}_~!$&'()*+,;=-]+)\\x{{5D}}"
    authority = f"//(?:{user}*@)?(?:{literal}|{name}*)(?::[0-9]*)?(?:/{path}*)*"
    rooted = f"{authority}|/(?:{path}+(?:/{path}*)*)?"
    tail = f"(?:\\?(?:[:@/?{private}{plain}]|{ESCAPED})*)?(?:#(?:[:@/?{plain}]|{ESCAPED})*)?"
    absolute = f"{SCHEME}:(?:{rooted}|{path}+(?:/{path}*)*|)"
    if not relative:
        return f"(?:{absolute}){tail}"
    return f"(?:{absolute}|{rooted}|{segment}+(?:/{path}*)*|){tail}"


VARIABLE = f"(?:[a-zA-Z0-9_]|{ESCAPED})(?:\\x{{2E}}?(?:[a-zA-Z0-9_]|{ESCAPED}))*(?::[1-9][0-9]{{0,3}}|\\*)?"
TEMPLATE = (
    f"(?:[\\x{{21}}#$&'()*+,\\x{{2D}}-;=?-\\x{{5B}}\\x{{5D}}_a-z~{UCS}{PRIVATE}]|{ESCAPED}"
    f"|\\x{{7B}}[+#\\x{{2E}}/;?&=,!@|]?{VARIABLE}(?:,{VARIABLE})*\\x{{7D}})*"
)

FORMATS: dict[str, tuple[str, ...]] = {
    name: tuple(f"^(?:{part})$" for part in parts)
    for name, parts in {
        "date": (DATE,),
        "time": (LEAP_HOURS, LEAP_MINUTES),
        "date-time": (f"{DATE}[tT]{LEAP_HOURS}", f"{DATE}[tT]{LEAP_MINUTES}"),
        "duration": (f"P(?:{DURATION_DATE}(?:{DURATION_TIME})?|{DURATION_TIME}|[0-9]+W)",),
        "email": (EMAIL,),
        "ipv4": (IPV4,),
        "ipv6": (IPV6,),
        "uuid": ("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",),
        "uri": (_uri("", "", False),),
        "uri-reference": (_uri("", "", True),),
        "iri": (_uri(UCS, PRIVATE, False),),
        "iri-reference": (_uri(UCS, PRIVATE, True),),
        "uri-template": (TEMPLATE,),
    }.items()
}
