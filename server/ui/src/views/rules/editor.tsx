import { useEffect, useRef } from 'preact/hooks'
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands'
import { yaml } from '@codemirror/lang-yaml'
import { HighlightStyle, indentUnit, syntaxHighlighting } from '@codemirror/language'
import { lintGutter, setDiagnostics, type Diagnostic } from '@codemirror/lint'
import { search, searchKeymap } from '@codemirror/search'
import { Annotation, EditorState, type Extension } from '@codemirror/state'
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers } from '@codemirror/view'
import { tags } from '@lezer/highlight'
import type { Mark } from './problems'

export interface EditorProps {
  label: string
  value: string
  onChange: (value: string) => void
  marks: Mark[]
  tall?: boolean // fills the window's height
  jump?: { line: number; column: number } // passing a new object moves the cursor there
}

const fromOutside = Annotation.define<boolean>()

const colours = HighlightStyle.define([
  { tag: [tags.definition(tags.propertyName), tags.propertyName], color: 'var(--accent)' },
  { tag: tags.comment, color: 'var(--muted)' },
  { tag: tags.string, color: 'var(--ok)' },
  { tag: [tags.separator, tags.punctuation, tags.squareBracket, tags.brace, tags.labelName, tags.meta], color: 'var(--muted)' },
])

const look = EditorView.theme({
  '&': { minHeight: '16rem', height: 'var(--editor-height, auto)', maxHeight: 'var(--editor-max, 36rem)', color: 'var(--text)', backgroundColor: 'var(--surface)', fontSize: '13px' },
  '&.cm-focused': { outline: 'none' }, // the frame around the editor has an outline
  '.cm-scroller': { overflow: 'auto', fontFamily: 'var(--mono)', lineHeight: '1.55' },
  '.cm-content': { caretColor: 'var(--text)', padding: '8px 0' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--surface)', color: 'var(--muted)', border: '0' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'var(--hover)' },
  '&:not(.cm-focused) .cm-activeLine, &:not(.cm-focused) .cm-activeLineGutter': { backgroundColor: 'transparent' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground': { background: 'var(--accent-soft) !important' },
  '.cm-tooltip, .cm-panels': { backgroundColor: 'var(--raised)', color: 'var(--text)', border: '1px solid var(--line)' },
  '.cm-panels input, .cm-panels button': { background: 'var(--surface)', color: 'var(--text)', border: '1px solid var(--line-strong)', borderRadius: '4px' },
  '.cm-diagnostic': { fontFamily: 'var(--font)', padding: '6px 10px' },
  '.cm-diagnostic-error': { borderLeft: '3px solid var(--bad)' },
  '.cm-diagnostic-warning': { borderLeft: '3px solid var(--warn)' },
  '.cm-lintRange-error': { backgroundImage: 'none', textDecoration: 'underline wavy var(--bad)' },
  '.cm-lintRange-warning': { backgroundImage: 'none', textDecoration: 'underline wavy var(--warn)' },
})

// Editor is CodeMirror for YAML. It is in a shadow root, where its styles are adopted stylesheets, which the content
// security policy allows.
export function Editor(p: EditorProps) {
  const host = useRef<HTMLDivElement>(null)
  const view = useRef<EditorView | null>(null)
  const latest = useRef(p)
  latest.current = p

  useEffect(() => {
    const root = host.current!.shadowRoot ?? host.current!.attachShadow({ mode: 'open' })
    const extensions: Extension[] = [
      lineNumbers(),
      highlightActiveLineGutter(),
      highlightSpecialChars(),
      history(),
      drawSelection(),
      highlightActiveLine(),
      yaml(),
      indentUnit.of('  '),
      syntaxHighlighting(colours),
      lintGutter(),
      search({ top: true }),
      // Tab leaves the editor like any other field, because a page must not trap the focus.
      keymap.of([{ key: 'Escape', run: (v) => (v.contentDOM.blur(), true) }, ...defaultKeymap, ...historyKeymap, ...searchKeymap]),
      EditorView.contentAttributes.of({ 'aria-label': p.label, tabindex: '0', spellcheck: 'false', autocapitalize: 'off' }),
      EditorView.updateListener.of((u) => {
        if (u.docChanged && !u.transactions.every((t) => t.annotation(fromOutside))) latest.current.onChange(u.state.doc.toString())
      }),
      look,
    ]
    const v = new EditorView({ root, parent: root, state: EditorState.create({ doc: p.value, extensions }) })
    view.current = v
    return () => {
      v.destroy()
      view.current = null
    }
  }, [p.label])

  useEffect(() => {
    const v = view.current
    if (!v) return
    const was = v.state.doc.toString()
    if (was === p.value) return
    v.dispatch({ changes: difference(was, p.value), annotations: fromOutside.of(true) })
  }, [p.value])

  useEffect(() => {
    const v = view.current
    if (v) v.dispatch(setDiagnostics(v.state, p.marks.map((m) => diagnostic(v.state, m)).sort((a, b) => a.from - b.from)))
  }, [p.marks])

  useEffect(() => {
    const v = view.current
    if (!v || !p.jump) return
    const at = offset(v.state, p.jump.line, p.jump.column)
    v.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: 'center' }) })
    v.focus()
  }, [p.jump])

  return <div ref={host} class={`editor ${p.tall ? 'tall' : ''}`} />
}

function offset(state: EditorState, line: number, column: number): number {
  const l = state.doc.line(Math.max(1, Math.min(state.doc.lines, line)))
  return Math.min(l.to, l.from + Math.max(0, column - 1))
}

function diagnostic(state: EditorState, m: Mark): Diagnostic {
  const l = state.doc.line(Math.max(1, Math.min(state.doc.lines, m.line)))
  const from = offset(state, l.number, m.column)
  // The mark extends to the end of the value, as far as this line shows it.
  const rest = /^("[^"]*"|'[^']*'|[^\s,\]}#]+)?/.exec(l.text.slice(from - l.from))![0].length
  return { from, to: from + rest, severity: m.kind === 'problem' ? 'error' : 'warning', message: m.text }
}

// difference returns one replacement between the common beginning and the common end of two texts, so that the cursor
// and the undo history are kept.
function difference(a: string, b: string): { from: number; to: number; insert: string } {
  const most = Math.min(a.length, b.length)
  let head = 0
  while (head < most && a[head] === b[head]) head++
  let tail = 0
  while (tail < most - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++
  return { from: head, to: a.length - tail, insert: b.slice(head, b.length - tail) }
}
