"""Format numbers as short texts."""

PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def plural(count: int, noun: str) -> str:
    """A count with its noun: '1 class', '3,626 rounds'."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def with_commas(value: float) -> str:
    """A count, or a quantile of counts, which can have one decimal: '12,345', '5.5'."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def fixed(value: float, digits: int = 2) -> str:
    """A number with `digits` decimals, never '-0.00'."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def with_prefix(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number with `digits` significant digits and an SI prefix: '12.3 M'."""
    if value is None:
        return "–"
    power = 0
    while value >= 1000 - 0.5 * 10 ** (3 - digits) and power < len(PREFIXES) - 1:
        value, power = value / 1000, power + 1
    text = str(int(value)) if power == 0 and value == int(value) else f"{value:#.{digits}g}".rstrip(".")
    return f"{text} {PREFIXES[power]}{unit}".rstrip()
