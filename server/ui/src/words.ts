// Human-readable texts for the names that the API uses.
import type { Problem } from './wire'

export const reasons: Record<string, string> = {
  within: 'within every limit',
  unlimited: 'no rule applies',
  bypassed: 'on the allow list',
  limited: 'a limit is used up',
  denied: 'on the deny list',
  identity_required: 'what a rule counts by is missing',
  unavailable: 'the store is lost, and the rule refuses then',
  unreadable_path: "the path can't be read",
  cooldown: 'kept out, since it kept coming while refused',
  overloaded: 'the node is overloaded',
}

export const edges: Record<string, string> = {
  library: 'a program, by the library',
  http: 'HTTP middleware',
  check: 'the check API',
  gateway: 'the gateway',
  envoy: "Envoy's rate limit service",
  extauthz: "Envoy's ext_authz",
  forwardauth: 'forward auth of a proxy',
  grpc: 'gRPC middleware',
  resp: 'the Redis protocol',
}

// says turns a problem of the rules into a sentence, including the suggested fix.
export const says = (p: Problem) => (p.hint ? `${p.text}. ${p.hint[0]!.toUpperCase()}${p.hint.slice(1)}` : p.text)
