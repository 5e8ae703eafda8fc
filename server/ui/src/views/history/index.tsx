import { useEffect, useMemo, useState } from 'preact/hooks'
import * as api from '../../api'
import * as cli from '../../cli'
import { full, plural } from '../../format'
import { asError, useLoad, usePoll } from '../../load'
import { Badge } from '../../parts/badge'
import { Button } from '../../parts/button'
import { Card } from '../../parts/card'
import { CliLine } from '../../parts/cliline'
import { Code } from '../../parts/code'
import { Diff } from '../../parts/diff'
import { Empty } from '../../parts/empty'
import { Failed } from '../../parts/failed'
import { Segments, Select } from '../../parts/field'
import { Loading } from '../../parts/loading'
import { Page } from '../../parts/page'
import { Table, type Column } from '../../parts/table'
import { Time } from '../../parts/time'
import { Review, type Change } from '../../review/review'
import { navigate, to as address, useQuery, useRoute } from '../../router'
import { useMay, useSession } from '../../session'
import type { RuleVersion } from '../../wire'
import './history.css'

// nameOf returns the name of a version: its number, and for an orphan (a version that the store lost and replaced) also
// its hash.
export const nameOf = (v: RuleVersion) => (v.orphan ? `${v.version}-${v.hash.slice(0, 8)}` : String(v.version))

const page = 50

export default function History() {
  const session = useSession()!
  if (session.rules_in_file) {
    return (
      <Page title="History">
        <Empty title={`The rules come from ${session.rules_in_file}`}>
          <p>A file keeps no versions: ask the tool that keeps it, such as git. With the rules in the store, every change is a version here.</p>
        </Empty>
      </Page>
    )
  }
  return <Versions />
}

function Versions() {
  const { query } = useRoute()
  const newest = usePoll((signal) => api.versions({ limit: page }, signal), 5000, [])
  const [older, setOlder] = useState<RuleVersion[]>([])
  const [end, setEnd] = useState(false)
  const [asking, setAsking] = useState<{ busy?: boolean; error?: api.ApiError }>({})

  const all = useMemo(() => {
    const seen = new Map<string, RuleVersion>()
    for (const v of [...(newest.data?.versions ?? []), ...older]) if (!seen.has(nameOf(v))) seen.set(nameOf(v), v)
    return [...seen.values()].sort((a, b) => b.version - a.version || Number(a.orphan) - Number(b.orphan))
  }, [newest.data, older])
  const inForce = all.find((v) => !v.orphan)
  const last = Math.min(...all.filter((v) => !v.orphan).map((v) => v.version))

  const more = async () => {
    setAsking({ busy: true })
    try {
      const { versions } = await api.versions({ before: last, limit: page })
      setOlder((o) => [...o, ...versions])
      setEnd(!versions.some((v) => !v.orphan && v.version < last))
      setAsking({})
    } catch (e) {
      setAsking({ error: asError(e) })
    }
  }

  const chosen = query.get('to') ?? (inForce && nameOf(inForce)) ?? ''
  const version = all.find((v) => nameOf(v) === chosen)

  return (
    <Page title="History" lead="Every change of the rules is a version. Nothing is overwritten, and each can be put in force again.">
      {!newest.data ? (
        newest.error ? <Failed error={newest.error} retry={newest.reload} /> : <Loading rows={10} />
      ) : (
        <div class="history">
          <Card flush class="versions" title="Versions" aside={newest.error ? <span class="text-warn">{newest.error.message}</span> : plural(all.length, 'version shown', 'versions shown')}>
            <Table
              label="Versions"
              rows={all}
              columns={columns(chosen, inForce)}
              rowKey={nameOf}
              href={(v) => address('history', '', { to: nameOf(v) })}
              empty={
                <Empty title="There are no versions yet">
                  <p>The first is written when a node starts, or with the first change.</p>
                </Empty>
              }
            />
            {last > 1 && !end && (
              <div class="versions-foot">
                <Button onClick={more} busy={asking.busy}>
                  Older versions
                </Button>
                {asking.error && <span class="text-bad">{asking.error.message}</span>}
              </div>
            )}
          </Card>
          <One key={chosen} name={chosen} version={version} all={all} inForce={inForce} onDone={newest.reload} />
        </div>
      )}
    </Page>
  )
}

const columns = (chosen: string, inForce: RuleVersion | undefined): Column<RuleVersion>[] => [
  {
    id: 'version',
    head: 'Version',
    width: '7.5rem',
    cell: (v) => (
      <span class="version-name">
        <a class="num" href={address('history', '', { to: nameOf(v) })} aria-current={nameOf(v) === chosen ? 'true' : undefined}>
          {nameOf(v)}
        </a>
        {v === inForce && <Badge tone="ok">in force</Badge>}
        {v.orphan && <Badge tone="warn" title="It was in force on some node, until it turned out that the store had gone on without it.">orphan</Badge>}
      </span>
    ),
  },
  { id: 'when', head: 'When', width: '5.5rem', cell: (v) => <Time at={timeOf(v)} none="unknown" /> },
  { id: 'who', head: 'Who', width: '5rem', wide: 640, cell: (v) => v.author || <span class="muted">unknown</span> },
  { id: 'message', head: 'Message', cell: (v) => <span title={v.message}>{v.message}</span> },
]

// timeOf returns null for a damaged version, which has no time.
const timeOf = (v: RuleVersion) => (v.time.startsWith('0001-') ? null : v.time)

// One shows one version: what it changed, how it differs from any other version, its text, and a button to restore it.
function One({ name, version, all, inForce, onDone }: { name: string; version: RuleVersion | undefined; all: RuleVersion[]; inForce: RuleVersion | undefined; onDone: () => void }) {
  const may = useMay('rules')
  const [show, setShow] = useQuery<'change' | 'text'>('show', 'change')
  const number = Number.parseInt(name)
  const [against, setAgainst] = useQuery<string>('from', '')
  const from = against || (version?.orphan ? String(inForce?.version ?? '') : number > 1 ? String(version?.parent || number - 1) : '')
  const [change, setChange] = useState<Change>()
  const newest = inForce && name === nameOf(inForce)
  useEffect(() => {
    if (against === name) setAgainst('')
  }, [against])

  const names = all.map(nameOf)
  const choices = [...new Set([from, ...names])].filter((n) => n && n !== name).map((n) => [n, `version ${n}${inForce && n === nameOf(inForce) ? ' (in force)' : ''}`] as const)
  return (
    <Card
      class="version"
      title={name ? `Version ${name}` : 'Version'}
      aside={
        <Button
          small
          why={may || (newest ? 'It is in force.' : '')}
          onClick={() =>
            setChange({
              title: `Roll back to version ${name}`,
              verb: 'Roll back',
              lead: 'What was in force then becomes the newest version. Nothing is lost: going back is a version, too.',
              send: (o) => api.rollback({ version: number, ...(name.includes('-') ? { hash: name.replace(/^\d+-/, '') } : {}) }, o),
              cli: (o) => cli.rollback(name, o),
              since: inForce?.version,
              covers: async () => true,
            })
          }
        >
          Roll back to this
        </Button>
      }
    >
      {version && (
        <p>
          {version.author || 'Nobody named'}, <Time at={timeOf(version)} none="at an unknown time" /> {timeOf(version) && <small class="num">{full(version.time)}</small>}
          {version.message && <span class="version-message">{version.message}</span>}
        </p>
      )}
      {version?.orphan && <p class="text-warn">An orphan: it was in force on some node, until it turned out that the store had gone on without it. Blocks that were made in it aren't in force.</p>}
      <div class="version-tools">
        <Segments
          label="Show"
          hideLabel
          value={show}
          options={[
            ['change', 'Change'],
            ['text', 'Text'],
          ]}
          onChange={setShow}
        />
        {show === 'change' && choices.length > 0 && from && <Select label="Compared with" value={from} options={choices} onChange={setAgainst} />}
      </div>
      {show === 'text' ? <Text key={name} name={name} /> : from ? <Difference key={`${from} ${name}`} from={from} to={name} /> : <First name={name} onText={() => setShow('text')} />}
      {change && (
        <Review
          change={change}
          onClose={() => setChange(undefined)}
          onDone={() => {
            onDone()
            navigate(address('history'))
          }}
        />
      )}
    </Card>
  )
}

function First({ name, onText }: { name: string; onText: () => void }) {
  if (!name) return null
  return (
    <Empty title="This is the first version">
      <p>There is nothing before it to compare it with.</p>
      <Button onClick={onText}>Show its text</Button>
    </Empty>
  )
}

function Difference({ from, to }: { from: string; to: string }) {
  const { data, error, reload } = useLoad((signal) => api.diff({ from, to }, signal), [from, to])
  if (error) return <Failed error={error} retry={reload} />
  if (!data) return <Loading rows={6} />
  return (
    <>
      <Diff text={data.diff} label={`From version ${from} to ${to}`} />
      {!`${from}${to}`.includes('-') && <CliLine>{cli.diff(from, to)}</CliLine>}
    </>
  )
}

function Text({ name }: { name: string }) {
  const { data, error, reload } = useLoad(() => api.ruleVersion(name), [name])
  if (error) return <Failed error={error} retry={reload} />
  if (!data) return <Loading rows={10} />
  return (
    <>
      <Code label={`The rules of version ${name}`}>{data.text}</Code>
      <CliLine>{cli.showRules(name)}</CliLine>
    </>
  )
}
