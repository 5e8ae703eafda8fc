// Builds commands that do the same as the console, ready to paste into a shell. A command never contains a key: - reads
// the key from standard input, and --client names a client that the nodes remember.
import { sh } from './parts/cliline'
import type { Check, EventFilter } from './wire'

export interface Said {
  message?: string
  force?: boolean
}

// flag returns '' if there is no value, so that a command has only the flags that matter.
const flag = (name: string, value: string | number | undefined) => (value === undefined || value === '' ? '' : ` ${name} ${sh(String(value))}`)

// arg quotes an argument. If it begins with -, -- is put before it, so that it isn't read as a flag.
export const arg = (text: string) => (text.startsWith('-') ? `-- ${sh(text)}` : sh(text))

// weir builds a command for the node that served the page. If that node listens at the default address, the command
// needs no flag for it. Arguments that begin with -- come last, because nothing after -- is read as a flag.
function weir(command: string, args = '', flags = ''): string {
  const origin = globalThis.location?.origin ?? ''
  const all = `${flags}${/^http:\/\/(127\.0\.0\.1|localhost):8082$/.test(origin) ? '' : flag('--admin', origin.replace(/^http:\/\//, ''))}`
  const words = args && ` ${args}`
  return `weir ${command}${args.startsWith('-- ') ? all + words : words + all}`
}

const change = (command: string, args: string, flags: string, o: Said) => weir(command, args, `${flags}${flag('-m', o.message)}${o.force ? ' --force' : ''}`)

// who returns the argument that names a client.
export const who = (fingerprint: string, pasted: boolean) => (pasted ? '-' : `--client ${sh(fingerprint)}`)

export const override = (client: string, n: { rule: string; limit: string; burst?: string; lasting?: string }, o: Said = {}) =>
  change('keys override', client, `${flag('--rule', n.rule)}${flag('--limit', n.limit)}${flag('--burst', n.burst)}${flag('--for', n.lasting)}`, o)
export const unoverride = (client: string, rule: string, o: Said = {}) => change('keys override', client, `${flag('--rule', rule)} --remove`, o)
export const listEntry = (list: 'denylist' | 'allowlist', entry: string, remove: boolean, o: Said = {}) =>
  change(`keys ${list === 'denylist' ? 'block' : 'allow'}`, entry, remove ? ' --remove' : '', o)

export const cooldowns = () => weir('keys cooldowns')
export const lift = (cooldown: string) => weir('keys lift', cooldown)

// counters builds the command that shows or resets a request's counters.
export function counters(verb: 'show' | 'reset', client: string, c: Check, unverified = false): string {
  const { user, org, tier, ...rest } = c.attributes ?? {}
  const attrs = Object.entries(rest).map(([name, value]) => flag('--attr', `${name}=${value}`))
  const request = flag('--method', c.method) + flag('--path', c.path) + flag('--ip', c.ip) + flag('--user', user) + flag('--org', org) + flag('--tier', tier) + attrs.join('')
  return weir(`keys ${verb}`, client, `${request}${unverified ? ' --unverified' : ''}`)
}

// putRule passes the rule's text to the command as a here-document, with a delimiter that the text doesn't contain. A
// text that contains keys is read from a file, because shells keep a history.
export function putRule(id: string, yaml: string, o: Said): string {
  if (/\boverride["']?\s*:/.test(yaml)) return `# Save the rule's YAML as ${id}.yaml first. It has keys in it, so it isn't shown here.\n${change('rules put', `${arg(id)} ${sh(`${id}.yaml`)}`, '', o)}`
  const lines = yaml.replace(/\n$/, '').split('\n')
  let mark = 'EOF'
  while (lines.includes(mark)) mark += '_'
  return `${change('rules put', `${arg(id)} -`, '', o)} <<'${mark}'\n${lines.join('\n')}\n${mark}`
}
export const removeRule = (id: string, o: Said) => change('rules remove', arg(id), '', o)
export const putTier = (tier: string, n: { limit?: string | number; capacity?: number }, o: Said) => change('rules tier', arg(tier), `${flag('--limit', n.limit)}${flag('--burst', n.capacity)}`, o)
export const apply = (version: number, o: Said) => `# Save the YAML as rules.yaml first.\n${change('rules apply', 'rules.yaml', flag('--if-version', version), o)}`
export const rollback = (name: string, o: Said = {}) => change('rules rollback', sh(name), '', o)
export const showRules = (version = '') => weir('rules show', '', flag('--version', version))
export const diff = (from: string, to: string) => weir('rules diff', '', `${flag('--from', from)}${flag('--to', to)}`)
export const whatIf = (id: string, limit: string) => weir('rules whatif', arg(id), flag('--limit', limit))
export const top = () => weir('top')
export const nodes = () => weir('nodes')
export const tail = (f: EventFilter) => weir('tail', '', `${flag('--outcome', f.outcome)}${flag('--rule', f.rule)}${flag('--client', f.client)}${flag('--edge', f.edge)}`)
