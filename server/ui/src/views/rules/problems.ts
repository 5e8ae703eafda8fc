// Maps the problems and warnings of a node to positions in the text of one rule.
import type { Problem } from '../../wire'
import { says } from '../../words'
import { fieldAt, type FieldName } from './form-model'
import { placeOf } from './yaml-edit'

export interface Mark {
  kind: 'problem' | 'warning'
  line: number // counted from 1; 0 means the text as a whole
  column: number
  field?: FieldName
  text: string // including the hint
}

// inRule separates problems in the rule's own text from those elsewhere in the document. If the node can't parse the
// rule's text, its line numbers are those of that text. Otherwise they are those of the document, so the place in the
// rule's text is found by the problem's path.
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

// inDocument maps the problems of a text that is the whole document.
export const inDocument = (list: Problem[], kind: Mark['kind']): Mark[] => list.map((p) => ({ kind, line: p.line, column: p.column, text: said(p.path ?? '', p) }))

const said = (path: string, p: Problem) => (path ? `${path}: ${says(p)}` : says(p))

// byField returns the mark of each form field: the first problem, or else the first warning.
export function byField(marks: Mark[]): Partial<Record<FieldName, Mark>> {
  const out: Partial<Record<FieldName, Mark>> = {}
  for (const m of marks) if (m.field && (!out[m.field] || (out[m.field]!.kind === 'warning' && m.kind === 'problem'))) out[m.field] = m
  return out
}
