"""Writes calendar.txt: when windows of the calendar begin and end, in µs since the Unix epoch.

A window begins at the first moment whose local date isn't before its own, which is looked for minute by minute: nothing is
assumed of when clocks are changed. Years end at 2037 where they are, since later rules may differ between versions of the
time zone data.

    python3 calendar_windows.py > calendar.txt
"""
import calendar, functools, random
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MINUTE, DAY = 60_000_000, 86_400_000_000
FIXED = ["UTC", "Etc/GMT+12", "Pacific/Kiritimati", "Asia/Kathmandu"]
CHANGING = ["Pacific/Apia", "Pacific/Kwajalein", "Pacific/Chatham", "Australia/Lord_Howe", "Asia/Tehran", "Asia/Beirut",
            "Asia/Amman", "Africa/Cairo", "Europe/Berlin", "Atlantic/Azores", "America/Sao_Paulo", "America/St_Johns",
            "America/Havana", "America/New_York"]


def local(us, zone):
    return (EPOCH + timedelta(microseconds=us)).astimezone(zone)


def utc(d):
    return (d - date(1970, 1, 1)).days * DAY


@functools.cache
def first(d, zone):
    lo = utc(d) - 27 * 60 * MINUTE
    while local(lo + MINUTE, zone).date() < d:
        lo += MINUTE
    hi = lo + MINUTE
    while hi - lo > 1:
        mid = (lo + hi) // 2
        lo, hi = (mid, hi) if local(mid, zone).date() < d else (lo, mid)
    return hi


def begins(d, unit, anchor):
    if unit == "month":
        return d.day == min(anchor, calendar.monthrange(d.year, d.month)[1])
    return unit == "day" or (d.weekday() + 1) % 7 == anchor


def window(us, zone, unit, anchor):
    near = local(us, zone).date()
    reach = {"day": 3, "week": 9, "month": 35}[unit]
    days = [near + timedelta(days=i) for i in range(-reach, reach + 1)]
    edges = [first(d, zone) for d in days if begins(d, unit, anchor)]
    return max(e for e in edges if e <= us), min(e for e in edges if e > us)


def changes(zone):
    """Moments near midnight at which the zone's clocks are changed, and near skipped days."""
    out, last = [], None
    for d in range(utc(date(1972, 1, 1)), utc(date(2037, 12, 1)), DAY):
        if (offset := local(d, zone).utcoffset()) != last and last is not None:
            at = next(m for m in range(d - DAY, d + MINUTE, MINUTE) if local(m, zone).utcoffset() == offset)
            if abs(offset - last) > timedelta(hours=20) or {local(at, zone).hour, local(at - 1, zone).hour} & {23, 0}:
                out.append(at)
        last = offset
    return out


random.seed(1)
for name in FIXED + CHANGING:
    zone = ZoneInfo(name)
    skipped = {"Pacific/Apia": [date(2011, 12, 30)], "Pacific/Kiritimati": [date(1994, 12, 31), date(1995, 1, 1)],
               "Pacific/Kwajalein": [date(1993, 8, 21)]}.get(name, [])
    near = changes(zone)
    last = 2100 if name in FIXED else 2037
    for unit, anchor in [("day", 0)] + [("week", i) for i in range(7)] + [("month", i) for i in (1, 15, 28, 29, 30, 31)]:
        moments = [first(d, zone) + sign * random.randrange(5 * DAY) for d in skipped for sign in (-1, 1)]
        moments += [m + random.randrange(-60, 90) * MINUTE for m in random.sample(near, min(len(near), 12 if unit == "day" else 3))]
        years = [2000, 2024, random.randrange(1972, last), last]
        moments += [utc(date(random.choice(years), 1, 1)) + random.randrange(31 * DAY, 62 * DAY)]  # February
        moments += [random.randrange(utc(date(1972, 2, 1)), utc(date(last, 12, 1)))]
        print(name, unit, anchor)
        for m in moments:
            start, end = window(m, zone, unit, anchor)
            for us in sorted({start - 1, start, m}):
                print(us, *window(us, zone, unit, anchor))
