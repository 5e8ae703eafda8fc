import { Fragment, type ComponentChildren } from 'preact'
import type { Column } from './table'

export interface MiniProps<T> {
  label: string
  rows: T[]
  columns: Column<T>[]
  rowKey: (row: T) => string
  rowClass?: (row: T) => string
  below?: (row: T) => ComponentChildren // content below a row, over the full width
  foot?: ComponentChildren[] // the cells of a footer, one for each column
  last?: ComponentChildren // shown in place of rows that were left out
}

const hide = <T,>(c: Column<T>) => `${c.number ? 'number' : ''} ${c.wide ? `from-${c.wide}` : ''}`

// Mini is a table of a few rows. It looks like Table, but has none of its functions.
export function Mini<T>(p: MiniProps<T>) {
  return (
    <table class="mini" aria-label={p.label}>
      <thead>
        <tr>
          {p.columns.map((c) => (
            <th key={c.id} scope="col" class={hide(c)} title={c.title} style={c.width ? { width: c.width } : undefined}>
              {c.head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {p.rows.map((row) => {
          const below = p.below?.(row)
          return (
            <Fragment key={p.rowKey(row)}>
              <tr class={p.rowClass?.(row)}>
                {p.columns.map((c) => (
                  <td key={c.id} class={hide(c)}>
                    {c.cell(row)}
                  </td>
                ))}
              </tr>
              {below && (
                <tr class="below">
                  <td colSpan={p.columns.length}>{below}</td>
                </tr>
              )}
            </Fragment>
          )
        })}
        {p.last && (
          <tr>
            <td colSpan={p.columns.length}>{p.last}</td>
          </tr>
        )}
      </tbody>
      {p.foot && (
        <tfoot>
          <tr>
            {p.columns.map((c, i) => (
              <td key={c.id} class={hide(c)}>
                {p.foot![i]}
              </td>
            ))}
          </tr>
        </tfoot>
      )}
    </table>
  )
}
