// visible returns the range of rows to draw for a window of a given height, with some rows above and below. The range
// changes in steps of ten, so that scrolling by one row draws nothing new. top is the position of the first row in the
// window.
export function visible(count: number, rowHeight: number, top: number, windowHeight: number): { from: number; to: number } {
  if (count <= 60) return { from: 0, to: count } // so few are always drawn, so that they are printed, too
  const margin = 20
  const first = Math.floor(-top / rowHeight)
  const last = Math.ceil((windowHeight - top) / rowHeight)
  const from = Math.max(0, Math.floor((first - margin) / 10) * 10)
  const to = Math.max(0, Math.min(count, Math.ceil((last + margin) / 10) * 10))
  return { from: Math.min(from, to), to }
}

// One collator: making one for each comparison takes ten times as long.
const names = new Intl.Collator('en', { numeric: true })

// compare sorts a copy of the rows. Equal rows keep their order, and rows without a value come last in either
// direction.
export function compare<T>(rows: T[], by: (row: T) => number | string | null, desc: boolean): T[] {
  const sign = desc ? -1 : 1
  return rows
    .map((row) => ({ row, value: by(row) }))
    .sort((a, b) => {
      if (a.value === null || b.value === null) return a.value === b.value ? 0 : a.value === null ? 1 : -1
      if (typeof a.value === 'string' || typeof b.value === 'string') return sign * names.compare(String(a.value), String(b.value))
      return sign * (a.value - b.value)
    })
    .map((r) => r.row)
}

// stay keeps rows in the order of their old places. New rows come last.
export const stay = <T>(rows: T[], key: (row: T) => string, places: Map<string, number>): T[] =>
  compare(rows, (r) => places.get(key(r)) ?? null, false)
