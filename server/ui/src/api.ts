// A typed client of the admin API of the node that served the page: one function for each endpoint.
import { sentence } from './format'
import { proof, setProof } from './session'
import { readEvents } from './sse'
import type * as wire from './wire'

export class ApiError extends Error {
  constructor(
    readonly status: number, // 0 if the node didn't answer
    readonly code: string,
    message: string,
    readonly problems: wire.Problem[] = [],
    readonly warnings: wire.Problem[] = [],
  ) {
    super(message)
  }
}

// The shell sets this callback, which opens the login when a request has no valid session. It resolves to true once
// there is a new session.
let onUnauthorized = () => Promise.resolve(false)
export const setUnauthorized = (f: () => Promise<boolean>) => void (onUnauthorized = f)

interface Options {
  query?: Record<string, string | number | boolean | undefined>
  json?: unknown
  yaml?: string
  ifMatch?: string
  signal?: AbortSignal
  accept?: string
  once?: boolean // the request changes something, so it isn't retried automatically
}

async function send(method: string, path: string, o: Options = {}): Promise<Response> {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(o.query ?? {})) {
    if (value !== undefined && value !== '' && value !== false) query.set(name, String(value))
  }
  const headers: Record<string, string> = { Accept: o.accept ?? 'application/json' }
  if (o.json !== undefined) headers['Content-Type'] = 'application/json'
  if (o.yaml !== undefined) headers['Content-Type'] = 'application/yaml'
  const proves = proof()
  if (proves) headers['X-Weir-Session'] = proves
  if (o.ifMatch) headers['If-Match'] = o.ifMatch === '*' ? '*' : `"${o.ifMatch.replaceAll('"', '')}"`
  let answer: Response
  try {
    answer = await fetch(path + (query.size ? `?${query}` : ''), {
      method,
      headers,
      body: o.yaml ?? (o.json === undefined ? null : JSON.stringify(o.json)),
      signal: o.signal ?? null,
      credentials: 'same-origin',
      cache: 'no-store',
    })
  } catch (e) {
    if (o.signal?.aborted) throw e
    throw new ApiError(0, 'NO_ANSWER', "This node doesn't answer. It may have been stopped, or the network between it and you is broken.")
  }
  if (answer.ok) return answer
  const error = await readError(answer)
  if (error.status === 401 && path !== '/v1/session') {
    const now = proof()
    const renewed = Boolean(now) && now !== proves // somebody logged in while the request was in flight, so there is no need to ask
    if ((renewed || (await onUnauthorized())) && !o.once) return send(method, path, { ...o, once: true })
  }
  throw error
}

async function readError(answer: Response): Promise<ApiError> {
  const text = await answer.text().catch(() => '')
  try {
    const { error } = JSON.parse(text) as wire.ErrorBody
    return new ApiError(answer.status, error.code, sentence(error.message), error.details?.problems, error.details?.warnings)
  } catch {
    return new ApiError(answer.status, 'UNKNOWN', text.trim() || `The node answered with status ${answer.status} and no reason.`)
  }
}

async function json<T>(method: string, path: string, o?: Options): Promise<T> {
  return (await send(method, path, o)).json() as Promise<T>
}

const id = encodeURIComponent

function write<T = wire.Outcome>(method: string, path: string, o: wire.WriteOptions = {}, body: Pick<Options, 'json' | 'yaml'> = {}): Promise<T> {
  return json<T>(method, path, {
    ...body,
    query: { force: o.force, dry_run: o.dryRun, message: o.message },
    signal: o.signal,
    once: !o.dryRun,
    ...(o.ifMatch ? { ifMatch: o.ifMatch } : {}),
  })
}

// Session

export const session = () => json<wire.Session>('GET', '/v1/session')
export const login = async (token: string) => {
  const session = await json<wire.Session>('POST', '/v1/session', { json: { token } })
  setProof(session.proof ?? null)
  return session
}
export const logout = async () => {
  await send('DELETE', '/v1/session')
  setProof(null)
}

// Now

export const now = (signal?: AbortSignal) => json<wire.Now>('GET', '/v1/now', { signal })
export const nodes = (signal?: AbortSignal) => json<wire.Nodes>('GET', '/v1/nodes', { signal })

export interface EventHandlers {
  open?: () => void
  decision: (d: wire.Decision) => void
  pulse: (p: wire.Pulse) => void
}

// events calls the handlers until the signal aborts it, and rejects when the node ends the stream.
export async function events(filter: wire.EventFilter, on: EventHandlers, signal: AbortSignal): Promise<void> {
  const answer = await send('GET', '/v1/events', { query: { ...filter }, accept: 'text/event-stream', signal })
  on.open?.()
  await readEvents(answer.body!, (e) => {
    if (e.event === 'decision') on.decision(JSON.parse(e.data) as wire.Decision)
    else if (e.event === 'pulse') on.pulse(JSON.parse(e.data) as wire.Pulse)
    else if (e.event === 'end') throw new ApiError(0, 'ENDED', sentence((JSON.parse(e.data) as { text: string }).text))
  })
  throw new ApiError(0, 'ENDED', 'The node ended the stream.')
}

// Clients

export const top = (o: { by?: 'requests' | 'refused'; k?: number; rule?: string } = {}, signal?: AbortSignal) =>
  json<wire.Top>('GET', '/v1/top', { query: o, signal })
export const client = (name: wire.ClientName, signal?: AbortSignal) => json<wire.ClientInfo>('POST', '/v1/clients', { json: name, signal })

export const explain = (check: wire.Check, o: { unverified?: boolean; signal?: AbortSignal } = {}) =>
  json<wire.Explanation>('POST', '/v1/explain', { json: check, query: { unverified: o.unverified }, signal: o.signal })
export const counters = (check: wire.Check, o: { unverified?: boolean; signal?: AbortSignal } = {}) =>
  json<wire.Counters>('POST', '/v1/counters', { json: check, query: { unverified: o.unverified }, signal: o.signal })
export const resetCounters = (check: wire.Check, o: { unverified?: boolean } = {}) =>
  json<{ reset: number }>('POST', '/v1/counters/reset', { json: check, query: { unverified: o.unverified }, once: true })

export const cooldowns = (signal?: AbortSignal) => json<{ cooldowns: wire.Cooldown[] }>('GET', '/v1/cooldowns', { query: { k: 10_000 }, signal })
export const lift = (name: string) => json<wire.Cooldown>('DELETE', `/v1/cooldowns/${id(name)}`, { once: true })

export const setOverride = (
  what: { key?: string; client?: string; rule: string; expires_in?: string } & wire.Numbers,
  o?: wire.WriteOptions,
) => write('PUT', '/v1/rules/key', o, { json: what })
export const removeOverride = (what: { key?: string; client?: string; rule: string }, o?: wire.WriteOptions) =>
  write('DELETE', '/v1/rules/key', o, { json: what })

export type List = 'denylist' | 'allowlist'
export const list = async (name: List) => {
  const answer = await send('GET', `/v1/${name}`)
  const { entries, emergency = [] } = (await answer.json()) as { entries: string[]; emergency?: wire.Block[] }
  return { entries, emergency, etag: etag(answer) }
}
export const listEntry = (name: List, what: { key?: string; client?: string; remove?: boolean }, o?: wire.WriteOptions) =>
  write('POST', `/v1/${name}/entries`, o, { json: what })

// Rules

const etag = (answer: Response) => (answer.headers.get('ETag') ?? '').replaceAll('"', '')

export const rules = async (signal?: AbortSignal) => {
  const answer = await send('GET', '/v1/rules', { accept: 'application/yaml', signal })
  return { text: await answer.text(), etag: etag(answer) }
}
export const document = async (signal?: AbortSignal) => {
  const answer = await send('GET', '/v1/rules', { signal })
  return { document: (await answer.json()) as wire.Document | null, version: Number.parseInt(etag(answer)) }
}
export const putRules = (yaml: string, o: wire.WriteOptions & { ifMatch: string }) => write('PUT', '/v1/rules', o, { yaml })
// If rule is set, yaml is the text of that rule alone.
export const validate = (yaml: string, o: { rule?: string; signal?: AbortSignal } = {}) =>
  json<wire.Validation>('POST', '/v1/rules/validate', { yaml, query: { rule: o.rule }, signal: o.signal })

export const rule = async (name: string, signal?: AbortSignal): Promise<wire.RuleText> => {
  const answer = await send('GET', `/v1/rules/id/${id(name)}`, { signal })
  return { ...((await answer.json()) as Omit<wire.RuleText, 'version'>), version: Number.parseInt(etag(answer)) }
}
export const putRule = (name: string, yaml: string, o?: wire.WriteOptions) => write('PUT', `/v1/rules/id/${id(name)}`, o, { yaml })
export const removeRule = (name: string, o?: wire.WriteOptions) => write('DELETE', `/v1/rules/id/${id(name)}`, o)
export const putTier = (name: string, numbers: wire.Numbers, o?: wire.WriteOptions) =>
  write('PUT', `/v1/rules/tier/${id(name)}`, o, { json: numbers })

export const versions = (o: { before?: number; limit?: number } = {}, signal?: AbortSignal) =>
  json<{ versions: wire.RuleVersion[] }>('GET', '/v1/rules/versions', { query: o, signal })
// name is a version number, or number-hash (42-abcdef12) for an orphan.
export const ruleVersion = (name: string | number) => json<wire.RuleVersion>('GET', `/v1/rules/versions/${id(name)}`)
// from and to are names like those of ruleVersion.
export const diff = (o: { from?: string | number; to?: string | number } = {}, signal?: AbortSignal) =>
  json<wire.VersionDiff>('GET', '/v1/rules/diff', { query: o, signal })
export const rollback = (to: { version: number; hash?: string }, o?: wire.WriteOptions) => write('POST', '/v1/rules/rollback', o, { json: to })

export const rulesUsage = (signal?: AbortSignal) => json<wire.RulesUsage>('GET', '/v1/rules/usage', { signal })
export const ruleUsage = (name: string, o: { k?: number; by?: 'requests' | 'refused' } = {}, signal?: AbortSignal) =>
  json<wire.RuleUsage>('GET', `/v1/rules/usage/${id(name)}`, { query: o, signal })
export const whatIf = (question: wire.WhatIfQuestion, signal?: AbortSignal) =>
  json<wire.WhatIf>('POST', '/v1/rules/whatif', { json: question, signal })
