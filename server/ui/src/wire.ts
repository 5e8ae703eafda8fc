// The admin API's requests and answers, as docs/openapi.yaml describes them.

export interface Session {
  name: string
  role: 'read' | 'operate'
  session: boolean
  tokens: boolean
  expires?: string
  proof?: string // of the login alone
  rules_in_file: string
  node: string
  version: string
}

export interface Problem {
  file: string
  line: number
  column: number
  path?: string
  rule?: string
  text: string
  hint?: string
  excerpt?: string
  caret: number
}

export interface ErrorBody {
  error: {
    code: string
    message: string
    details?: { problems?: Problem[]; warnings?: Problem[] }
  }
}

// Now

// A time is null where nothing was measured.
type Micros = number | null

export interface Series {
  decisions: number[]
  refused: number[]
  degraded: number[]
  p50_us: Micros[]
  p99_us: Micros[]
}

export interface Shard {
  name: string
  up: boolean
  since?: string
  error?: string
  keys?: number
}

export interface Store {
  url: string
  status: 'up' | 'degraded'
  since?: string
  nodes?: number
  shards?: Shard[]
}

export interface NowShard extends Shard {
  breaker: 'closed' | 'open' | 'probing'
  p50_us: Micros
  p99_us: Micros
}

export interface TroubleItem {
  what: 'store_lost' | 'store_evicts' | 'store_credentials' | 'node_stale' | 'rules_stale' | 'no_rules' | 'rules_rejected' | 'rules_warning' | 'degraded' | 'overloaded' | 'clock_drift' | 'region_lost'
  since: string
  text: string
}

export interface FailureMode {
  rule: string
  mode: 'allow' | 'refuse' | 'local'
  text: string
}

export interface FailureTotal {
  mode: FailureMode['mode']
  text: string
  rules: number
}

export interface EdgeRate {
  decisions_per_second: number
  refused_per_second: number
}

export interface Now {
  node: string
  version: string
  started: string
  at: string
  slot_seconds: number
  series: Series
  totals: EdgeRate & { over_seconds: number; degraded_per_second: number; by_reason: Record<string, number>; by_edge: Record<string, EdgeRate> }
  latency: { over_seconds: number; measured: number; p50_us: Micros; p99_us: Micros }
  lease: { local_share: number | null; tokens: number; counters: number } | null
  store: Omit<Store, 'shards'> & { shards: NowShard[] }
  memory: { counters: number; bytes: number; cap: number; evictions: number }
  in_flight: number
  max_in_flight: number
  rules_version: number
  rules_since: string | null
  trouble: TroubleItem[]
  failure_modes: FailureMode[] // at most 1,000
  failure_totals: FailureTotal[]
}

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
  path: string // the pattern of the limit that binds
  limit: number
  remaining: number
  retry_after_ms: number // -1: waiting doesn't help
  shadow: string[] // rules that would have refused it, were they enforced
}

// Pulse counts the decisions of the last second.
export interface Pulse {
  seen: number // that fit the filter
  sent: number
  left_out: number
  one_in: number
}

export interface EventFilter {
  outcome?: string
  rule?: string
  client?: string
  edge?: string
}

// Nodes

export interface Node {
  name: string
  self: boolean
  version: string
  rules_version: number
  rules_hash: string
  rules_text_hash: string
  store: 'up' | 'degraded' | 'unknown'
  since?: string
  lost?: string[]
  warning?: string
  seen_ms_ago: number
}

export interface Nodes {
  nodes: Node[]
  as_of?: string
  age_seconds?: number
  stale: boolean
  store: Store
}

export interface Version {
  version: string
  store: Store
}

// Clients

// Kind is api_key, user or ip; of what a rule counts by also org, api_key+method and so on.
export type ClientKind = string

export interface History {
  requests: number[]
  refused: number[]
}

export interface TopClient {
  client: string
  fingerprint: string
  kind: ClientKind
  rule: string
  more_rules: number
  requests: number
  refused: number
  plus_minus: number
  low_by: number
  history: History
}

export interface TopRule {
  rule: string
  requests: number
  refused: number
  shadow_refused: number
  last_hit: string | null
  last_refusal: string | null
}

export interface Top {
  by: 'requests' | 'refused'
  window_seconds: number
  slot_seconds: number
  nodes: { name: string; self: boolean; age_ms: number; sampled_one_in: number; since: string }[]
  nodes_missing: string[]
  partial?: string
  missing_below: number
  clients: TopClient[]
  rules: TopRule[]
  rules_since: string
}

// A client is named by its fingerprint, or by what was pasted, which stays in a request's body.
export type ClientName = { client: string } | { key: string } | { user: string } | { ip: string }

// Span is what hour an answer is about, and whose.
export interface Span {
  slot_seconds: number
  slots: number
  from: string
  at: string
  nodes: { name: string; self: boolean; age_ms: number; sampled_one_in: number; since: string }[]
  nodes_missing: string[]
  partial?: string
  nodes_gone: { name: string; seen: string }[] // ended within the hour
  whole_since: string | null // null: living nodes are missing
}

export interface OverrideOf {
  rule: string
  limit: string
  capacity?: number
  expires?: string
}

export interface ClientInfo extends Span {
  client: string
  fingerprint: string
  kind: ClientKind
  blocked: boolean
  allowed: boolean
  overrides: OverrideOf[]
  rules: { rule: string; requests: number; refused: number; low_by: number; used: number; history: History }[]
  coverage: number
}

// Check is a request as for /v1/check; client is a fingerprint in the place of key.
export interface Check {
  key?: string
  client?: string
  method?: string
  path?: string
  ip?: string
  attributes?: Record<string, string>
  cost?: number
}

export interface Explanation {
  reason: string
  pattern?: string
  emergency?: boolean // the pattern is on the emergency list
  path?: string
  paths?: string[]
  key_verified?: boolean
  tier?: string
  tier_why?: string
  ignored?: string[]
  rules: ExplainedRule[]
}

export interface ExplainedRule {
  rule: string
  applies: boolean
  why: string
  refuses?: boolean // for want of what it counts by
  request?: { method: string; path: string } // that its endpoint matches
  by?: string[]
  shared_address?: boolean // it counts by an address that isn't known
  cost?: number
  numbers_from?: string
  source?: 'override' | 'rule' | 'rule_tier' | 'tier'
  limits?: { policy: string; algorithm: string; limit: string; burst?: number; shadow?: boolean }[]
}

export interface Counter {
  rule: string
  policy: string
  algorithm: string
  shadow: boolean
  refuses: boolean
  shared_address: boolean // it is that of all whose address isn't known
  amount?: string // what it counts of a request: tokens, usd
  limit: string
  max: number
  remaining: number
  in_flight?: number // of max, where requests in flight are counted
  window_end?: string // of a fixed window
  runs_out_at?: string // of a budget that doesn't last to the end of its window
  used: number | null // null if nobody knows
  reset_after_ms: number
  retry_after_ms: number
  degraded: boolean
}

export interface Counters {
  counters: Counter[] // the one that binds first
  reason: string
}

export interface Cooldown {
  id: string
  rule: string
  client?: string
  fingerprint?: string // where the rule counts by one dimension
  n: number // in a row
  ends: string
  forgets: string
  shadow?: boolean
}

// Rules

export interface Outcome {
  version: number
  dry_run: boolean
  warnings: Problem[]
  needs_force: boolean
  diff: string
  expires?: string
  emergency?: 'added' | 'removed' // the change is one of the emergency list
}

// Block is an entry of the emergency list, which applies beside the rules.
export interface Block {
  entry: string
  by: string
  message: string
  since: string
}

export interface Validation {
  valid: boolean
  rules: number
  problems: Problem[]
  warnings: Problem[]
}

export interface RuleVersion {
  version: number
  hash: string
  parent: number
  parent_hash: string
  orphan: boolean
  author: string
  time: string
  message: string
  text?: string
}

export interface VersionDiff {
  from: number
  to: number
  diff: string
}

export interface RuleText {
  rule: string
  version: number // of the document that it is from, by its ETag
  yaml: string
  line: number
  limits: string[]
  numbers: { tier?: string; limit: string; burst?: number }[] // the same in parts
  changed: { version: number; author: string; time: string; message: string } | null
  reason?: string // why it isn't known who changed it
  searched: number
}

export interface Usage {
  rule: string
  requests: number
  refused: number
  would_refuse: number
  last_hit: string | null
  last_refusal: string | null
  keys: number
  above_50: number
  above_80: number
  above_100: number
  coverage: number
}

export interface RulesUsage extends Span {
  bytes: number
  rules: Usage[]
}

export interface RuleUsage extends Usage, Span {
  series: History
  clients: (Pick<TopClient, 'client' | 'fingerprint' | 'kind' | 'requests' | 'refused' | 'low_by' | 'history'> & { used: number })[]
}

export interface WhatIfQuestion {
  rule: string
  limit: string
  capacity?: number
  algorithm?: string
}

export interface WhatIf {
  rule: string
  limit: string
  hour: { from: string; to: string }
  requests: number
  would_refuse: number
  was_refused: number
  keys: number
  keys_refused: number
  clients: { client: string; fingerprint: string; requests: number; would_refuse: number; was_refused: number }[]
  coverage: number
  nodes: Top['nodes']
  nodes_missing: string[]
  nodes_gone: Span['nodes_gone']
  whole_since: string | null
  resolution_seconds: number
  partial?: string
  notes?: string[] // what the answer leaves out
}

// Document is the rules as JSON. Limits have several forms: see docs/rules.md.
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

export interface Numbers {
  limit?: string | number
  capacity?: number
}

// WriteOptions are what every write of the rules takes.
export interface WriteOptions {
  ifMatch?: string
  force?: boolean
  dryRun?: boolean
  message?: string
  signal?: AbortSignal
}
