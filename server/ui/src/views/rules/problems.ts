// Where a node's problems and warnings stand in the text of one rule.
import type { Problem } from '../../wire'
import { says } from '../../words'
import { fieldAt, type FieldName } from './form-model'
import { placeOf } from './yaml-edit'

export interface Mark {
  kind: 'problem' | 'warning'
  line: number // from 1; 0 is the text as a whole
  column: number
  field?: FieldName
  text: string // with the hint
}

// inRule tells apart what stands in the rule's own text and what stands elsewhere in the document. A node counts the lines
// of the text that it was sent while it can't read that alone, and then those of the document, where only the path helps.
export function inRule(list: Problem[], kind: Mark['kind'], text: string, id: string): { here: Mark[]; elsewhere: Problem[] } {
  const here: Mark[] = []
  const elsewhere: Problem[] = []
  for (const p of list) {
    if (p.file === 'rule') here.push({ kind, line: p.line, column: p.column, field: fieldAt(p.path ?? ''), text: said(p.path ?? '', p) })
    else if (p.rule !== undefined && p.rule.toLowerCase() === id.toLowerCase()) {
      const path = (p.path ?? '').replace(/^rules\[\d+\]\.?/, '')
      here.push({ kind, ...placeOf(text, path), field: fieldAt(path), text: said(path, p) })
    } else elsewhere.push(p)
  }
  return { here, elsewhere }
}

// inDocument is for a text that is the whole document.
export const inDocument = (list: Problem[], kind: Mark['kind']): Mark[] => list.map((p) => ({ kind, line: p.line, column: p.column, text: said(p.path ?? '', p) }))

const said = (path: string, p: Problem) => (path ? `${path}: ${says(p)}` : says(p))

// byField is what the form's fields say: the first problem of each, or else its first warning.
export function byField(marks: Mark[]): Partial<Record<FieldName, Mark>> {
  const out: Partial<Record<FieldName, Mark>> = {}
  for (const m of marks) if (m.field && (!out[m.field] || (out[m.field]!.kind === 'warning' && m.kind === 'problem'))) out[m.field] = m
  return out
}
