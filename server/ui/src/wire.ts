// The admin API's requests and responses. Their types come from docs/reference/openapi.yaml, and a whole-system test
// compares the API with that document. `npm run types` generates openapi.d.ts, and this file gives the types names. It
// spells out only what the document leaves open, such as the forms of rules.
import type { components, paths } from './openapi'

type Schemas = components['schemas']

// Get and Post are the response bodies of a path.
type Answered<Operation> = Operation extends { responses: { 200: { content: { 'application/json': infer Body } } } } ? Body : never
type Get<Path extends keyof paths> = Answered<paths[Path]['get']>
type Post<Path extends keyof paths> = Answered<paths[Path]['post']>
type Asked<Operation> = Operation extends { requestBody: { content: { 'application/json': infer Body } } } ? Body : never

export type Problem = Schemas['Problem']
export type ErrorBody = components['responses']['Error']['content']['application/json']
export type Session = Get<'/v1/session'>
export type Version = Get<'/v1/version'>

// Now

export type Now = Get<'/v1/now'>
export type Series = Now['series']
export type NowShard = Now['store']['shards'][number]
export type TroubleItem = Now['trouble'][number]
export type FailureMode = Now['failure_modes'][number]
export type FailureTotal = Now['failure_totals'][number]
export type EdgeRate = Now['totals']['by_edge'][string]

// Nodes

export type Nodes = Get<'/v1/nodes'>
export type Node = Nodes['nodes'][number]
export type Store = Schemas['Store']
export type Shard = NonNullable<Store['shards']>[number]

// Decisions as they are made: the events of /v1/events, which OpenAPI can't describe.

export interface Decision {
  time: string
  client: string
  fingerprint: string
  kind: ClientKind
  rule: string
  outcome: string
  reason: string
  edge: string
  method: string
  path: string // the pattern of the binding limit
  limit: number
  remaining: number
  retry_after_ms: number // -1 means that waiting doesn't help
  shadow: string[] // rules in shadow that would have refused the request
}

// Pulse counts the decisions of the last second.
export interface Pulse {
  seen: number // the number of decisions that matched the filter
  sent: number
  left_out: number
  one_in: number
}

export type EventFilter = { outcome?: string; rule?: string; client?: string; edge?: string }

// Clients

// ClientKind is api_key, user or ip. A rule may also count by org, api_key+method and so on.
export type ClientKind = string

export type Top = Get<'/v1/top'>
export type TopClient = Top['clients'][number]
export type TopRule = Top['rules'][number]
export type History = Schemas['HourPast']

// ClientName names a client by its fingerprint or by the pasted text, which goes only into the body of a request.
export type ClientName = { client: string } | { key: string } | { user: string } | { ip: string }
export type ClientInfo = Post<'/v1/clients'>
export type OverrideOf = ClientInfo['overrides'][number]

// Span says which time an answer covers, and which nodes it includes.
export type Span = Omit<RulesUsage, 'bytes' | 'rules'>

// Check is a request as /v1/check takes it, except that client, a fingerprint, replaces key.
export interface Check {
  key?: string
  client?: string
  method?: string
  path?: string
  ip?: string
  attributes?: Record<string, string>
  cost?: number
}

export type Explanation = Post<'/v1/explain'>
export type ExplainedRule = Schemas['ExplainedRule']
export type Counters = Post<'/v1/counters'>
export type Counter = Counters['counters'][number]
export type Cooldown = Schemas['Cooldown']

// Rules

export type Outcome = components['responses']['Outcome']['content']['application/json']
// Block is an entry of the emergency list, which applies in addition to the rules.
export type Block = NonNullable<Schemas['Entries']['emergency']>[number]
export type Validation = Post<'/v1/rules/validate'>
export type RuleVersion = Schemas['Version']
export type VersionDiff = Get<'/v1/rules/diff'>
// RuleText also has the version of the document, from the response's ETag.
export type RuleText = Get<'/v1/rules/id/{id}'> & { version: number }

export type RulesUsage = Get<'/v1/rules/usage'>
export type Usage = RulesUsage['rules'][number]
export type RuleUsage = Get<'/v1/rules/usage/{id}'>
export type WhatIfQuestion = Asked<paths['/v1/rules/whatif']['post']>
export type WhatIf = Post<'/v1/rules/whatif'>

// Document is the rules as JSON. Limits have several forms: see docs/reference/rules.md.
export interface Document {
  tiers?: Record<string, LimitForm>
  default_tier?: string
  rules?: DocumentRule[]
}

export type LimitForm = string | ({ limit?: string | number; burst?: number; limits?: LimitForm[]; capacity?: number; refill_rate?: number; window?: string | number; expires?: string } & Record<string, unknown>)

export interface DocumentRule {
  id: string
  match?: { endpoint?: string; endpoint_regex?: string; api_key_pattern?: string; api_key?: string; descriptor?: string[] }
  tier?: string
  by?: string[] | string
  algorithm?: string
  mode?: string
  layer?: string
  limit?: string
  limits?: LimitForm[]
  params?: LimitForm
  burst?: number
  tiers?: Record<string, LimitForm>
  override?: Record<string, LimitForm>
  shadow?: boolean
  candidate?: LimitForm
}

export type Numbers = Asked<paths['/v1/rules/tier/{tier}']['put']>

// WriteOptions apply to every write of the rules.
export interface WriteOptions {
  ifMatch?: string
  force?: boolean
  dryRun?: boolean
  message?: string
  signal?: AbortSignal
}
