// What the form shows of a rule's text, and how changes in the form change the text.
import { isMap, isScalar, isSeq, type Document, type Node } from 'yaml'
import { isFault, list, readYaml, replaceScalar, scalar, set, type Fault } from './yaml-edit'

export const fields = [
  'id',
  'limit',
  'burst',
  'algorithm',
  'max_delay',
  'by',
  'missing',
  'ipv4_prefix',
  'ipv6_prefix',
  'endpoint',
  'endpoint_regex',
  'api_key_pattern',
  'api_key',
  'tier',
  'layer',
  'cost',
  'status',
  'past_limit',
  'strict',
  'split',
  'on_store_failure',
  'shadow',
  'candidate',
  'abuse',
] as const
export type FieldName = (typeof fields)[number]

export interface Form {
  values: Record<FieldName, string>
  // Fields that the form can't show as they are written, such as params. They are edited in the YAML.
  held: Partial<Record<FieldName, string>>
  tiers: string[] // tiers for which the rule has its own numbers
  overrides: number
}

const inMatch = new Set<FieldName>(['endpoint', 'endpoint_regex', 'api_key_pattern', 'api_key'])

// pathOf returns the path of a field in the text.
export const pathOf = (f: FieldName): string[] => (inMatch.has(f) ? ['match', f] : f === 'status' ? ['count', 'status'] : [f])

// fieldAt returns the form field that shows the value at a path, if there is one.
export function fieldAt(path: string): FieldName | undefined {
  const [first = '', second = ''] = path.split(/[.[]/)
  if (first === 'match') return inMatch.has(second as FieldName) ? (second as FieldName) : 'endpoint'
  if (first === 'count') return 'status'
  if (first === 'limits' || first === 'params') return 'limit'
  if (first === 'mode') return 'algorithm'
  return (fields as readonly string[]).includes(first) ? (first as FieldName) : undefined
}

export function readForm(text: string): Form | Fault {
  const read = readYaml(text)
  if (isFault(read)) return read
  const { doc } = read
  const form: Form = { values: Object.fromEntries(fields.map((f) => [f, ''])) as Record<FieldName, string>, held: {}, tiers: names(doc, 'tiers'), overrides: names(doc, 'override').length }
  for (const f of fields) {
    const text = shown(get(doc, pathOf(f)))
    if (text === undefined) form.held[f] = 'Written in its long form: change it in the YAML.'
    else form.values[f] = text
  }
  const { values, held } = form
  for (const f of ['strict', 'shadow'] as const) values[f] = /^true$/i.test(values[f]) ? 'true' : ''
  if (isSeq(get(doc, ['by'])) && values.by === '') values.by = '[]'
  const candidate = get(doc, ['candidate'])
  if (isMap(candidate) && candidate.items.length === 1 && candidate.has('limit')) {
    delete held.candidate
    values.candidate = candidateOf(text)
  }
  if (has(doc, 'mode')) {
    const mode = shown(get(doc, ['mode']))
    if (mode === 'queue' && values.algorithm === 'leaky_bucket') values.algorithm = 'queue'
    else held.algorithm = 'Has a mode that the form doesn’t know: change it in the YAML.'
  }
  if (has(doc, 'limits')) {
    const several = shown(get(doc, ['limits']))
    if (several === undefined || has(doc, 'limit')) held.limit = 'Several limits in their long form: change them in the YAML.'
    else values.limit = several
  }
  if (has(doc, 'params')) held.limit = held.burst = 'Written as params: change them in the YAML.'
  return form
}

export const isForm = (f: Form | Fault): f is Form => 'values' in f

const has = (doc: Document, name: string) => isMap(doc.contents) && doc.contents.has(name)
const get = (doc: Document, path: string[]) => (isMap(doc.contents) ? (doc.getIn(path, true) as Node | undefined) : undefined)

function names(doc: Document, name: string): string[] {
  const map = get(doc, [name])
  return isMap(map) ? map.items.map((p) => String((p.key as { value: unknown }).value)) : []
}

// shown returns a scalar, or a list of scalars separated by commas. It returns undefined for other values.
function shown(node: Node | undefined): string | undefined {
  if (node === undefined) return ''
  if (isScalar(node)) return node.value === null ? '' : String(node.value)
  if (isSeq(node) && node.items.every((i) => isScalar(i) && !/[,\s]/.test(String(i.value)))) return node.items.map((i) => String((i as { value: unknown }).value)).join(', ')
  return undefined
}

const items = (value: string) => value.split(/[\s,]+/).filter(Boolean)

// change returns the text with a new value for a field. An empty value removes the field.
export function change(text: string, f: FieldName, value: string): string {
  const v = value.trim()
  switch (f) {
    case 'limit': {
      const several = v.includes(',')
      const emptied = set(text, [several ? 'limit' : 'limits'], undefined)
      return set(emptied, [several ? 'limits' : 'limit'], v === '' ? undefined : several ? list(items(v)) : scalar(v))
    }
    case 'by':
      return set(text, ['by'], v === '' ? undefined : v === '[]' ? '[]' : list(items(v)))
    case 'status':
      return set(text, ['count', 'status'], v === '' ? undefined : list(items(v)))
    case 'algorithm': {
      const queue = v === 'queue'
      const named = set(text, ['algorithm'], v === '' ? undefined : queue ? 'leaky_bucket' : v)
      const moded = set(named, ['mode'], queue ? 'queue' : undefined)
      return queue ? moded : set(moded, ['max_delay'], undefined)
    }
    case 'strict':
    case 'shadow':
      return set(text, [f], v === 'true' ? 'true' : undefined)
    case 'abuse':
      return set(text, [f], v || undefined) // so that true and false aren't read as text
    case 'burst':
    case 'cost':
      return set(text, [f], v === '' ? undefined : /^[\d_]+$/.test(v) ? v : scalar(v))
    case 'candidate': {
      // The burst of the enforced rule doesn't apply to the candidate. A candidate keeps its own burst when its limit
      // changes.
      const read = readYaml(text)
      const inner = !isFault(read) && isMap(get(read.doc, ['candidate']))
      return v === '' ? set(text, ['candidate'], undefined) : set(text, inner ? ['candidate', 'limit'] : ['candidate'], inner ? scalar(v) : `{limit: ${scalar(v)}}`)
    }
    default:
      return set(text, pathOf(f), v === '' ? undefined : scalar(v))
  }
}

// withLimit returns a rule's text with a new number for one of its limits, or of its limits for a tier. It returns null
// if they aren't written as limits.
export function withLimit(text: string, at: number, limit: string, tier?: string): string | null {
  const numbers = tier ? ['tiers', tier] : []
  const places = [[...numbers, 'limits', at], [...numbers, 'limits', at, 'limit'], ...(at === 0 ? [[...numbers, 'limit'], numbers] : [])]
  return places.reduce<string | null>((done, path) => done ?? replaceScalar(text, path, scalar(limit)), null)
}

// candidateOf returns the limit of a rule's candidate, or '' if the rule has none.
export function candidateOf(text: string): string {
  const read = readYaml(text)
  if (isFault(read)) return ''
  return shown(get(read.doc, ['candidate'])) ?? shown(get(read.doc, ['candidate', 'limit'])) ?? ''
}

// enforceCandidate replaces the rule's numbers with the candidate's.
export function enforceCandidate(text: string): string {
  const read = readYaml(text)
  if (isFault(read)) return text
  const limit = candidateOf(text)
  const burst = shown(get(read.doc, ['candidate', 'burst'])) ?? ''
  if (!limit) return text
  const bare = ['limits', 'params', 'candidate'].reduce((t, name) => set(t, [name], undefined), text)
  const done = set(bare, ['limit'], scalar(limit))
  return set(done, ['burst'], burst === '' ? undefined : burst)
}
