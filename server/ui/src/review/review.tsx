// A dialog for a change of the rules. It shows the change's fields, if any, its effects, and its command. After Apply,
// it shows which nodes have applied the change, and offers Undo.
import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import * as api from '../api'
import * as cli from '../cli'
import { full } from '../format'
import { asError } from '../load'
import { Button } from '../parts/button'
import { CliLine } from '../parts/cliline'
import { Dialog } from '../parts/dialog'
import { Diff } from '../parts/diff'
import { Check, Field } from '../parts/field'
import { Loading } from '../parts/loading'
import { Trouble } from '../parts/trouble'
import type { Outcome, Problem, WriteOptions } from '../wire'
import { says } from '../words'
import { InForce } from './in-force'
import './review.css'

export interface Change {
  title: string
  verb: string // the text of the button
  danger?: boolean
  lead?: ComponentChildren
  send: (o: WriteOptions) => Promise<Outcome>
  cli: (o: cli.Said) => string
  // The version that the user has seen. If the rules have changed since, the dialog shows that change; covers reports
  // whether the user's change would undo it.
  since?: number
  covers?: () => Promise<boolean>
  // For a change that is edited in the dialog: its fields; a text that changes when their values do; and why the values
  // can't be tried.
  fields?: ComponentChildren
  about?: string
  problem?: string
}

interface Tried {
  busy: boolean
  dry?: Outcome
  theirs?: { who: string; diff: string; covered: boolean }
  error?: api.ApiError
}

interface Done {
  version: number
  before: number
  cli: string
  expires?: string
  undone?: boolean
  emergency?: Outcome['emergency']
}

export function Review({ change: c, onClose, onDone }: { change: Change; onClose: () => void; onDone: () => void }) {
  const [tried, setTried] = useState<Tried>({ busy: true })
  const [done, setDone] = useState<Done>()
  const [message, setMessage] = useState('')
  const [sure, setSure] = useState(false)
  const [busy, setBusy] = useState(false)
  const [error, setError] = useState<api.ApiError>()
  const [round, setRound] = useState(0)
  const [first] = useState(c.about)
  const latest = useRef(c)
  latest.current = c
  const since = useRef(c.since)

  // The effects are requested a moment after the last keystroke. The previous result stays until then.
  useEffect(() => {
    setSure(false) // the user confirmed the previous result, not the new one
    if (c.problem) return setTried({ busy: false })
    let over = false
    setTried((t) => ({ ...t, busy: true }))
    const timer = setTimeout(
      () =>
        tryOut(latest.current, since.current).then(
          (t) => {
            since.current ??= t.dry?.version
            if (!over) setTried(t)
          },
          (e) => !over && setTried({ busy: false, error: asError(e) }),
        ),
      c.fields ? 200 : 0,
    )
    return () => {
      over = true
      clearTimeout(timer)
    }
  }, [c.about, c.problem, round])

  const { dry, theirs } = tried
  const must = Boolean(dry?.needs_force || theirs?.covered)
  const said = { message: message.trim(), force: must && sure }
  const why = c.problem || (tried.busy || !dry ? 'Wait until it is clear what would change.' : !dry.diff && !dry.emergency ? 'This changes nothing.' : must && !sure ? 'Confirm the warnings first.' : '')

  const work = async (f: () => Promise<Done>) => {
    setBusy(true)
    setError(undefined)
    try {
      setDone(await f())
    } catch (e) {
      const failed = asError(e)
      if (failed.code === 'CONFLICT' && !done) setRound(round + 1) // somebody else changed the rules first, so ask for the effects again
      else setError(failed)
    }
    setBusy(false)
  }
  const apply = () =>
    void work(async () => {
      const before = dry!.version
      const out = await c.send({ ifMatch: String(before), ...said })
      return { version: out.version, before, cli: c.cli(said), ...(out.expires ? { expires: out.expires } : {}), ...(out.emergency ? { emergency: out.emergency } : {}) }
    })
  // Undo restores the previous version only if nobody has changed the rules since, so it reverts nothing but this
  // change.
  const undo = ({ version, before, undone }: Done) =>
    void work(async () => {
      const out = await api.rollback({ version: before }, { ifMatch: String(version), force: true, message: undone ? `redo version ${before}` : `undo version ${version}` })
      return { version: out.version, before: version, cli: cli.rollback(String(before), { force: true }), undone: !undone }
    })

  const close = () => {
    if (done) onDone()
    onClose()
  }
  const footer = done ? (
    <>
      {!done.emergency && (
        <Button onClick={() => undo(done)} busy={busy}>
          {done.undone ? 'Redo' : 'Undo'}
        </Button>
      )}
      <Button kind="primary" onClick={close} autoFocus>
        Done
      </Button>
    </>
  ) : (
    <>
      <Button onClick={onClose}>Cancel</Button>
      {tried.error && <Button onClick={() => setRound(round + 1)}>Try again</Button>}
      <Button kind={c.danger ? 'danger' : 'primary'} busy={busy} why={why} onClick={apply}>
        {c.verb}
      </Button>
    </>
  )
  return (
    <Dialog open wide onClose={close} dirty={!done && Boolean(message.trim() || c.about !== first)} title={done ? (done.undone ? 'Undone' : 'Applied') : c.title} footer={footer}>
      {done ? (
        <>
          {done.emergency && <p role="status">{done.emergency === 'added' ? 'It is on the emergency list, and applies at once.' : 'It is off the emergency list.'} All nodes with the same Redis follow within 2 seconds.</p>}
          {done.version > done.before && <InForce key={done.version} version={done.version} />}
          {done.expires && <p>It ends at {full(done.expires)}.</p>}
          <CliLine>{done.cli}</CliLine>
        </>
      ) : (
        <form
          class="stack"
          onSubmit={(e) => {
            e.preventDefault()
            if (!why && !busy) apply()
          }}
        >
          {c.lead && <p class="muted">{c.lead}</p>}
          {c.fields}
          <div class="stack preview" aria-busy={tried.busy}>
            <Preview tried={tried} problem={c.problem} />
          </div>
          {must && <Check label="I have read this, and mean it" checked={sure} onChange={setSure} />}
          <Field label="Message" value={message} onInput={setMessage} placeholder="Why, for the history" hint="Optional. It is shown with the version, with your name and the time. Don't write a key into it." />
          {!c.problem && <CliLine>{c.cli(said)}</CliLine>}
          <input type="submit" hidden />
        </form>
      )}
      {error && (
        <div role="alert">
          <Trouble tone="bad" title={error.code === 'CONFLICT' ? 'Somebody else has changed the rules since' : "That didn't work"}>
            <p>{error.code === 'CONFLICT' ? `${error.message}. History shows both, and can roll back.` : error.message}</p>
            <Problems list={[...error.problems, ...error.warnings]} />
          </Trouble>
        </div>
      )}
    </Dialog>
  )
}

// tryOut asks for the effects of a change, and for the changes that others have made since the user looked.
async function tryOut(c: Change, since: number | undefined): Promise<Tried> {
  const dry = await c.send({ dryRun: true })
  if (since === undefined || dry.version <= since) return { busy: false, dry }
  const [{ diff }, { versions }, covered] = await Promise.all([api.diff({ from: since, to: dry.version }), api.versions({ limit: 50 }), c.covers?.()])
  const authors = new Set(versions.filter((v) => !v.orphan && v.version > since).map((v) => v.author || 'Somebody'))
  return { busy: false, dry, theirs: { who: [...authors].join(' and ') || 'Somebody', diff, covered: Boolean(covered) } }
}

function Preview({ tried: { dry, theirs, error }, problem }: { tried: Tried; problem: string | undefined }) {
  if (problem) return <p class="muted">What changes is shown once the fields are filled in.</p>
  if (error) {
    return (
      <div role="alert">
        <Trouble tone="bad" title="The node refuses this change">
          <p>{error.message}</p>
          <Problems list={error.problems} />
        </Trouble>
      </div>
    )
  }
  if (!dry) return <Loading rows={4} />
  return (
    <>
      {theirs && (
        <Trouble tone={theirs.covered ? 'bad' : 'warn'} title={`${theirs.who} changed the rules meanwhile`}>
          <p>
            {theirs.covered
              ? `Applying yours undoes what is shown here, up to version ${dry.version}. What you typed is kept if you cancel.`
              : `What is shown here stays. Below it is your change to version ${dry.version}.`}
          </p>
          <Diff text={theirs.diff} label="Their change" />
        </Trouble>
      )}
      {dry.emergency ? (
        <p>{dry.emergency === 'added' ? 'It goes on the emergency list, which applies beside the rules.' : 'It comes off the emergency list.'}</p>
      ) : (
        <Diff text={dry.diff} label="Your change" />
      )}
      {dry.warnings.length > 0 && (
        <Trouble title={dry.needs_force ? 'This is probably a mistake, or takes something from clients' : 'Worth knowing'}>
          <Problems list={dry.warnings} />
        </Trouble>
      )}
    </>
  )
}

// Problems lists the problems that a node found in a document, with their positions.
export function Problems({ list }: { list: Problem[] }) {
  if (!list.length) return null
  return (
    <ul class="problem-list">
      {list.map((p, i) => (
        <li key={i}>
          {p.path && <code>{p.rule ? p.path.replace(/^rules\[\d+\]/, p.rule) : p.path}</code>} {says(p)}
        </li>
      ))}
    </ul>
  )
}
