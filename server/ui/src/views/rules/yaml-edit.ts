// Edits one field in the text of a rule and leaves every other byte unchanged, including comments.
import { isMap, isScalar, isSeq, LineCounter, parseDocument, type Document, type Node, type Pair, type YAMLMap } from 'yaml'

// The failsafe schema reads every scalar as text. The node decides what numbers and words mean.
const options = { schema: 'failsafe', uniqueKeys: true, prettyErrors: false } as const

export interface Read {
  doc: Document
  lines: LineCounter
}

export interface Fault {
  line: number
  column: number
  text: string
}

export function readYaml(text: string): Read | Fault {
  const lines = new LineCounter()
  const doc = parseDocument(text, { ...options, lineCounter: lines })
  const wrong = doc.errors[0]
  if (wrong) {
    const at = lines.linePos(wrong.pos[0])
    return { line: at.line, column: at.col, text: `is not valid YAML: ${wrong.message.replace(/ at line \d+.*$/s, '')}` }
  }
  if (doc.contents !== null && !isMap(doc.contents)) return { line: 1, column: 1, text: 'must be the fields of a rule, such as limit: 100/minute' }
  return { doc, lines }
}

export const isFault = (r: Read | Fault): r is Fault => 'text' in r

// scalar quotes a text if necessary, so that YAML reads it as that text in any position.
export const scalar = (s: string) => (/^[\w/][\w./-]*$/.test(s) && !/^(true|false|yes|no|on|off|null|y|n)$/i.test(s) ? s : JSON.stringify(s))

// list writes several scalars on one line: [ip, path].
export const list = (items: string[]) => `[${items.map(scalar).join(', ')}]`

// set writes a value, given as YAML, at a path of one or two names. undefined removes the field. The text must be
// valid.
export function set(text: string, path: string[], source: string | undefined): string {
  const read = readYaml(text)
  if (isFault(read)) return text
  const want = expected(read.doc, path, source)
  const same = (t: string) => {
    const r = readYaml(t)
    return !isFault(r) && JSON.stringify(r.doc.toJS() ?? {}) === want
  }
  const edited = splice(text, read.doc, path, source)
  if (same(edited)) return edited
  // If the small edit can't handle the layout, write the document anew, which keeps the comments but not all spaces.
  change(read.doc, path, source)
  return read.doc.toString({ lineWidth: 0 })
}

// replaceScalar overwrites the scalar at a path. It returns null if there is none, or if the value is a list or a map.
export function replaceScalar(text: string, path: (string | number)[], source: string): string | null {
  const read = readYaml(text)
  const node = isFault(read) || !path.length ? undefined : read.doc.getIn(path, true)
  return isScalar(node) && node.range ? text.slice(0, node.range[0]) + source + text.slice(node.range[1]) : null
}

function expected(doc: Document, path: string[], source: string | undefined): string {
  const copy = doc.clone()
  change(copy, path, source)
  return JSON.stringify(copy.toJS() ?? {})
}

function change(doc: Document, path: string[], source: string | undefined) {
  if (source !== undefined) {
    const value = parseDocument(source, options).contents
    const outer = path.length > 1 ? doc.get(path[0]!) : undefined
    // If the outer name has no value, or one that isn't a map, replace it with a map.
    if (path.length > 1 && !isMap(outer)) doc.set(path[0]!, doc.createNode({ [path[1]!]: value }, { flow: true }))
    else doc.setIn(path, value)
    return
  }
  if (doc.contents === null || !doc.hasIn(path)) return
  doc.deleteIn(path)
  const outer = path.length > 1 ? doc.get(path[0]!) : undefined
  if (isMap(outer) && outer.items.length === 0) doc.delete(path[0]!)
}

function splice(text: string, doc: Document, path: string[], source: string | undefined): string {
  const root = doc.contents as YAMLMap | null
  const [name, inner] = path as [string, string?]
  if (root === null) return source === undefined ? text : addLine(text, text.length, '', name, wrap(inner, source))
  if (inner === undefined) return put(text, root, name, source)
  const outer = pairOf(root, name)?.value
  if (isMap(outer) && outer.items.length > 0) {
    if (source === undefined && outer.items.length === 1 && pairOf(outer, inner)) return put(text, root, name, undefined)
    return put(text, outer as YAMLMap, inner, source)
  }
  return source === undefined ? text : put(text, root, name, wrap(inner, source))
}

const wrap = (inner: string | undefined, source: string) => (inner === undefined ? source : `{${inner}: ${source}}`)

const pairOf = (map: YAMLMap, name: string): Pair | undefined => (map.items as Pair[]).find((p) => isScalar(p.key) && String(p.key.value) === name)

function put(text: string, map: YAMLMap, name: string, source: string | undefined): string {
  const pair = pairOf(map, name)
  if (pair) return source === undefined ? remove(text, map, pair) : replace(text, pair, source)
  if (source === undefined) return text
  if (map.flow) {
    const end = map.range![1] - 1
    const before = text.slice(0, end).trimEnd()
    return `${before}${map.items.length ? ', ' : ''}${name}: ${source}${text.slice(end)}`
  }
  const last = map.items.at(-1) as Pair
  const key = start(map.items[0] as Pair)
  return addLine(text, endOf(last), text.slice(lineStart(text, key), key).replace(/[^ ]/g, ' '), name, source)
}

function replace(text: string, pair: Pair, source: string): string {
  const value = pair.value as Node | null
  const colon = text.indexOf(':', (pair.key as Node).range![1]) + 1
  const empty = !value?.range || (isScalar(value) && value.range[0] === value.range[1])
  if (empty) return `${text.slice(0, colon)} ${source}${text.slice(colon)}`
  const end = endOf(pair)
  // A value on the lines below its name moves to the line of the name.
  const from = text.slice(colon, value.range![0]).includes('\n') ? colon : value.range![0]
  return `${text.slice(0, from)}${from === colon ? ' ' : ''}${source}${text.slice(end)}`
}

function remove(text: string, map: YAMLMap, pair: Pair): string {
  if (map.flow) {
    const others = (map.items as Pair[]).filter((p) => p !== pair).map((p) => text.slice(start(p), endOf(p)))
    return `${text.slice(0, map.range![0])}{${others.join(', ')}}${text.slice(map.range![1])}`
  }
  const next = text.indexOf('\n', endOf(pair))
  return text.slice(0, lineStart(text, start(pair))) + (next < 0 ? '' : text.slice(next + 1))
}

function addLine(text: string, after: number, indent: string, name: string, source: string): string {
  const next = text.indexOf('\n', after)
  const before = next < 0 ? text : text.slice(0, next)
  const line = `${indent}${name}: ${source}\n`
  return `${before}${before && !before.endsWith('\n') ? '\n' : ''}${line}${next < 0 ? '' : text.slice(next + 1)}`
}

const start = (p: Pair) => (p.key as Node).range![0]
const lineStart = (text: string, at: number) => text.lastIndexOf('\n', at - 1) + 1

// endOf returns the end of a pair's text, without the comments and empty lines after it.
function endOf(p: Pair): number {
  const value = p.value as Node | null
  if (!value?.range) return (p.key as Node).range![1] + 1
  if ((isMap(value) || isSeq(value)) && !value.flow && value.items.length) {
    const last = value.items.at(-1) as Pair | Node
    return isMap(value) ? endOf(last as Pair) : endOfNode(last as Node)
  }
  return value.range[1]
}

function endOfNode(n: Node): number {
  if (isMap(n) && !n.flow && n.items.length) return endOf(n.items.at(-1) as Pair)
  if (isSeq(n) && !n.flow && n.items.length) return endOfNode(n.items.at(-1) as Node)
  return n.range![1]
}

// placeOf returns the position of a path such as match.endpoint or limits[1] in a text, or of the part of the path that
// exists.
export function placeOf(text: string, path: string): { line: number; column: number } {
  const read = readYaml(text)
  if (isFault(read)) return { line: 1, column: 1 }
  let node = read.doc.contents as Node | null
  let at = node?.range?.[0] ?? 0
  let rest = path
  while (node && rest) {
    if (isMap(node)) {
      // Names may contain dots and brackets, so the longest name that matches is used.
      const pair = (node.items as Pair[])
        .filter((p) => isScalar(p.key) && follows(rest, String(p.key.value)))
        .sort((a, b) => String((b.key as { value: unknown }).value).length - String((a.key as { value: unknown }).value).length)[0]
      if (!pair) break
      rest = rest.slice(String((pair.key as { value: unknown }).value).length).replace(/^\./, '')
      node = pair.value as Node | null
      const empty = !node?.range || node.range[0] === node.range[1]
      at = empty || (isBlock(node) && !rest) ? start(pair) : node!.range![0]
    } else if (isSeq(node)) {
      const step = /^\[(\d+)\]\.?/.exec(rest)
      const item = step && (node.items[Number(step[1])] as Node | undefined)
      if (!item) break
      rest = rest.slice(step[0].length)
      node = item
      at = item.range?.[0] ?? at
    } else break
  }
  const p = read.lines.linePos(at)
  return { line: p.line, column: p.col }
}

const isBlock = (n: Node | null) => (isMap(n) || isSeq(n)) && !n.flow
const follows = (path: string, name: string) => path === name || path.startsWith(`${name}.`) || path.startsWith(`${name}[`)
