"""Numbers as people read them."""


def count(value: float) -> str:
    """1234567 -> '1.23M'."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}" if value != int(value) else str(int(value))


def size(value: float) -> str:
    """1234567 -> '1.23 MB' (decimal units, as network rates are)."""
    for scale, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= 0.9995 * scale:
            scaled = value / scale
            return f"{scaled:.0f} {suffix}" if scaled >= 99.95 else f"{scaled:.3g} {suffix}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """83 -> '1:23'."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def percent(share: float) -> str:
    """0.9876 -> '98.8 %'."""
    return f"{100 * share:.1f} %"


def times(ratio: float) -> str:
    """112.94 -> '113', 7.52 -> '7.5'."""
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}"
