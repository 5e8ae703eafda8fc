import type { ComponentChildren, TargetedMouseEvent } from 'preact'
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
import { useKeys } from '../keyboard'
import { navigate } from '../router'
import { Icon } from './icon'
import { compare, stay, visible } from './table-rows'

export interface Column<T> {
  id: string
  head: ComponentChildren
  title?: string // the tooltip of the column's header
  cell: (row: T) => ComponentChildren
  sort?: (row: T) => number | string | null // makes the column sortable by this value; null comes last
  number?: boolean // right-aligned
  width?: string // width of the column, such as '8rem'; one column without it takes the rest
  wide?: 640 | 960 | 1280 | 1600 // hides the column below this window width
}

export interface Sort {
  by: string
  desc: boolean
}

export interface TableProps<T> {
  label: string
  rows: T[]
  columns: Column<T>[]
  rowKey: (row: T) => string
  href?: (row: T) => string | undefined // where Enter or a click on the row leads; a cell should contain the same link, for Tab and for new tabs
  onOpen?: (row: T) => (() => void) | undefined // in place of href, if the address isn't known yet: the first cell becomes a button
  sort?: Sort // the initial sort order, or the current one if onSort is set
  onSort?: (s: Sort) => void
  empty?: ComponentChildren
  minWidth?: string // below this width, the table scrolls sideways
  stream?: boolean // new rows keep arriving at the top
}

const rowHeight = 36

// Table draws only visible rows, so ten thousand rows cost as much as fifty. j and k move, Enter opens.
export function Table<T>(p: TableProps<T>) {
  const [own, setOwn] = useState<Sort | undefined>(p.sort)
  const sort = p.onSort ? p.sort : own
  const onSort = p.onSort ?? setOwn
  const column = p.columns.find((c) => c.id === sort?.by && c.sort)
  const body = useRef<HTMLTableSectionElement>(null)
  const places = useRef(new Map<string, number>())
  const rows = useMemo(() => {
    const sorted = column?.sort ? compare(p.rows, column.sort, sort!.desc) : p.rows
    // Rows keep their places while the user moves through them with the keyboard, even if their numbers change.
    const held = !p.stream && body.current?.contains(document.activeElement)
    const rows = held ? stay(sorted, p.rowKey, places.current) : sorted
    places.current = new Map(rows.map((r, i) => [p.rowKey(r), i]))
    return rows
  }, [p.rows, column?.id, sort?.desc])

  const [seen, setSeen] = useState({ from: 0, to: 60 })
  const [at, setAt] = useState<string | null>(null)
  const wantFocus = useRef(false)

  useLayoutEffect(() => {
    const look = () => {
      const top = body.current!.getBoundingClientRect().top
      const next = visible(rows.length, rowHeight, top, innerHeight)
      setSeen((s) => (s.from === next.from && s.to === next.to ? s : next))
    }
    look()
    addEventListener('scroll', look, { passive: true })
    addEventListener('resize', look)
    return () => {
      removeEventListener('scroll', look)
      removeEventListener('resize', look)
    }
  }, [rows.length])

  const index = at === null ? -1 : rows.findIndex((r) => p.rowKey(r) === at)
  useLayoutEffect(() => {
    if (!wantFocus.current || index < 0) return
    wantFocus.current = false
    body.current?.querySelector<HTMLElement>(`[data-index="${index}"]`)?.focus({ preventScroll: true })
  })

  const open = (row: T | undefined) => {
    if (!row) return
    const href = p.href?.(row)
    if (href) navigate(href)
    else p.onOpen?.(row)?.()
  }
  const move = (by: number) => {
    if (!rows.length) return
    const next = index < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, index + by))
    setAt(p.rowKey(rows[next]!))
    wantFocus.current = true
    const top = body.current!.getBoundingClientRect().top + next * rowHeight
    if (top < 80) scrollBy(0, top - 80)
    else if (top + rowHeight > innerHeight - 60) scrollBy(0, top + rowHeight - innerHeight + 60)
  }
  useKeys([
    { keys: 'j', says: 'Next row', run: () => move(1) },
    { keys: 'k', says: 'Row before', run: () => move(-1) },
    ...(p.href || p.onOpen ? [{ keys: 'Enter', says: 'Open the row', run: () => open(rows[index]) }] : []),
  ])

  const click = (e: TargetedMouseEvent<HTMLElement>, row: T) => {
    // Links and buttons in a row keep their own actions, and selecting text isn't a click.
    if ((e.target as Element).closest('a,button,input,label') || getSelection()?.toString()) return
    const href = p.href?.(row)
    if (href && (e.metaKey || e.ctrlKey || e.button === 1)) window.open(href, '_blank')
    else if (e.button === 0) open(row)
  }

  return (
    <div class="table-box">
      <table class="table" aria-label={p.label} aria-rowcount={rows.length + 1} style={p.minWidth ? { minWidth: p.minWidth } : undefined}>
        <colgroup>
          {p.columns.map((c) => (
            <col key={c.id} class={hide(c)} style={c.width ? { width: c.width } : undefined} />
          ))}
        </colgroup>
        <thead>
          <tr aria-rowindex={1}>
            {p.columns.map((c) => (
              <th
                key={c.id}
                scope="col"
                class={`${c.number ? 'number' : ''} ${hide(c)}`}
                title={c.title}
                aria-sort={c.sort ? (column === c ? (sort!.desc ? 'descending' : 'ascending') : 'none') : undefined}
              >
                {c.sort ? (
                  <button type="button" onClick={() => onSort({ by: c.id, desc: column === c ? !sort!.desc : Boolean(c.number) })}>
                    {c.head}
                    <Icon name={column === c ? (sort!.desc ? 'down' : 'up') : ''} />
                  </button>
                ) : (
                  c.head
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {seen.from > 0 && <Gap rows={seen.from} />}
          {rows.slice(seen.from, seen.to).map((row, i) => {
            const key = p.rowKey(row)
            const n = seen.from + i
            const act = p.onOpen?.(row)
            return (
              <tr
                key={n} // keyed by place: when rows change places, only their content changes
                data-index={n}
                aria-rowindex={n + 2}
                tabIndex={-1}
                class={`${act || p.href?.(row) ? 'opens' : ''} ${key === at ? 'at' : ''}`}
                onClick={(e) => click(e, row)}
                onAuxClick={(e) => click(e, row)}
                onFocus={() => setAt(key)}
              >
                {p.columns.map((c, i) => (
                  <td key={p.stream && c.number ? key : c.id} class={`${c.number ? 'number' : ''} ${hide(c)}`}>
                    {act && i === 0 ? (
                      <button type="button" class="link" onClick={act}>
                        {c.cell(row)}
                      </button>
                    ) : (
                      c.cell(row)
                    )}
                  </td>
                ))}
              </tr>
            )
          })}
          {seen.to < rows.length && <Gap rows={rows.length - seen.to} />}
        </tbody>
      </table>
      {!rows.length && p.empty}
    </div>
  )
}

const hide = <T,>(c: Column<T>) => (c.wide ? `from-${c.wide}` : '')

// Gap has the height of the rows that aren't drawn. It has a single cell: more cells than visible columns would widen
// the table.
function Gap({ rows }: { rows: number }) {
  return (
    <tr class="gap" aria-hidden="true">
      <td style={{ height: `${rows * rowHeight}px` }} />
    </tr>
  )
}
