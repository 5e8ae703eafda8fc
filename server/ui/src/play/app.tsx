// The playground: requests on a time axis, and what each algorithm decides about them.
import { useEffect, useLayoutEffect, useMemo, useState } from 'preact/hooks'
import { Help } from '../help'
import { useKeys } from '../keyboard'
import { ThemeSwitch } from '../nav'
import { Button } from '../parts/button'
import { Card } from '../parts/card'
import { Empty } from '../parts/empty'
import { Segments } from '../parts/field'
import { Icon } from '../parts/icon'
import { Loading } from '../parts/loading'
import { fail, Toasts } from '../parts/toast'
import { Bar, Demos, NumberFields, Patterns } from './controls'
import { call, load, type Explanation, type Numbers } from './engine'
import { Lanes, Results, summary } from './lanes'
import { Player, speeds } from './player'
import { format, parse, type State } from './query'
import { Applies, OwnRules } from './rules'

export function App() {
  const [loaded, setLoaded] = useState<'' | 'ready' | Error>('')
  const [help, setHelp] = useState(false)
  useEffect(() => {
    load().then(
      () => setLoaded('ready'),
      (e) => setLoaded(e instanceof Error ? e : new Error(String(e))),
    )
  }, [])
  useKeys([{ keys: '?', says: 'Show these keys', run: () => setHelp(true) }])
  return (
    <>
      <header class="play-head">
        <a class="brand" href="/console/" aria-label="Weir, to the console">
          <Icon name="weir" /> <span>Weir</span>
        </a>
        <h1>Playground</h1>
        <div class="play-tools">
          <ThemeSwitch />
          <Button quiet onClick={() => setHelp(true)} label="Keys of the playground (?)">
            <Icon name="keyboard" />
          </Button>
        </div>
      </header>
      <main class="play" data-ready={loaded === 'ready' || undefined}>
        {loaded === 'ready' ? (
          <Playground />
        ) : loaded ? (
          <div role="alert">
            <Empty title="The playground couldn't be loaded">
              <p>{loaded.message}</p>
              <p>It needs a browser with WebAssembly, and a node that was built with `make ui build`.</p>
              <Button onClick={() => location.reload()}>Load the page again</Button>
            </Empty>
          </div>
        ) : (
          <Card title="Loading the limiter into this page, about 1 MB">
            <Loading rows={8} />
          </Card>
        )}
      </main>
      <Help open={help} onClose={() => setHelp(false)} />
      <Toasts />
    </>
  )
}

function Playground() {
  const first = useMemo(() => parse(location.search), [])
  const [state, setState] = useState<State>(first)
  const [ready, setReady] = useState(true) // the user's own rules are valid
  const [explained, setExplained] = useState<Explanation>() // which of those rules apply
  const [, again] = useState(0)
  const player = useMemo(() => new Player(), [])
  const demos = useMemo(() => {
    try {
      player.open(call('compare', first.numbers))
    } catch {
      first.numbers = { limit: 10, window: 10_000, burst: 10, max_delay: 0 } // the address had invalid numbers
      player.open(call('compare', first.numbers))
    }
    player.speed = first.speed
    return call('demos', {}).demos
  }, [])

  const change = (s: Partial<State>) => setState((before) => ({ ...before, ...s }))
  const act = (f: () => void) => {
    try {
      f()
    } catch (e) {
      fail(e)
    }
  }
  const show = (id: string) =>
    act(() => {
      if (state.own) compare(state.numbers)
      player.show(id)
      change({ show: id, own: false })
    })
  const compare = (numbers: Numbers) => {
    const scene = call('compare', numbers)
    player.demo = undefined
    player.open(scene)
  }
  const apply = (numbers: Numbers) => {
    try {
      compare(numbers)
      if (state.show) player.show(state.show) // the demonstration's arrivals depend on the numbers
      change({ numbers })
      return ''
    } catch (e) {
      return (e as Error).message
    }
  }
  const clear = () => {
    player.clear()
    change({ show: '' })
  }

  useLayoutEffect(() => player.onChange(() => again((n) => n + 1)), []) // subscribes before the children do, so that no part of the page misses a change
  useEffect(() => {
    if (!first.own && demos.some((d) => d.id === first.show)) player.show(first.show)
  }, [])
  useEffect(() => history.replaceState(null, '', location.pathname + format({ ...state, speed: state.show ? 1 : player.speed })), [state, player.speed])

  const why = state.own && !ready ? 'Put the rules and the request right first.' : ''
  const burst = state.own ? Math.min(1000, Math.max(1, player.lanes[0]?.info.max ?? 5)) : state.numbers.limit
  const faster = (by: number) => player.setSpeed(speeds[Math.min(Math.max(speeds.findIndex((s) => s >= player.speed) + by, 0), speeds.length - 1)]!)
  const send = (n: number) => why || act(() => player.send(n, 0))
  useKeys([
    { keys: ' ', says: 'Send one request', run: () => send(1) },
    { keys: 'b', says: 'Send a burst', run: () => send(burst) },
    { keys: 'p', says: 'Play or pause', run: () => player.toggle() },
    { keys: '.', says: 'Step to the next request, or to what happens next', run: () => player.step('step') },
    { keys: ',', says: 'Step back to the request before', run: () => player.step('back') },
    { keys: '0', says: 'Back to the beginning', run: () => player.seek(0) },
    { keys: '+', says: 'Faster', run: () => faster(1) },
    { keys: '-', says: 'Slower', run: () => faster(-1) },
    { keys: 's', says: 'Start or stop the pattern', run: () => act(() => (player.pattern ? player.stop() : why || player.start(state.pattern, Number(state.rate)))) },
    { keys: 'r', says: 'Reset: forget all requests', run: clear },
    ...demos.map((d, i) => ({ keys: String(i + 1), says: d.title, run: () => show(d.id) })),
  ])

  const story = player.text || (state.own ? 'Send requests as you have typed them: every limit that applies is a lane.' : 'Press a demonstration, or send requests yourself with the space bar: every algorithm decides on the same arrivals.')
  return (
    <>
      <section class="play-top" aria-label="What to see">
        <Segments
          label="What decides"
          hideLabel
          value={state.own ? 'own' : 'algorithms'}
          options={[
            ['algorithms', 'Algorithms'],
            ['own', 'Your rules'],
          ]}
          onChange={(v) => {
            clear()
            if (v === 'algorithms') act(() => compare(state.numbers))
            change({ own: v === 'own', show: '' })
          }}
        />
        <Demos list={demos} current={state.own ? '' : state.show} show={show} />
      </section>
      <p class={`story ${player.done ? 'done' : ''}`}>{story}</p>
      {/* Read out only while the clock is stopped. Otherwise one sentence would interrupt the other. */}
      <p class="hidden" role="status">
        {player.done ? player.text : player.playing ? '' : summary(player, state.own)}
      </p>
      <div class="play-body">
        <div class="main">
          <section class="card stage" aria-label={state.own ? 'Your limits' : 'The algorithms'}>
            <Bar player={player} burst={burst} act={act} why={why} clear={clear} />
            <Lanes player={player} own={state.own} />
            <Results player={player} own={state.own} />
          </section>
          {state.own && explained && <Applies x={explained} />}
        </div>
        <div class="side">
          {state.own ? (
            <OwnRules player={player} onReady={setReady} onExplained={setExplained} />
          ) : (
            <Card title="Numbers of all algorithms">
              <NumberFields numbers={state.numbers} apply={apply} />
            </Card>
          )}
          <Card title="A pattern">
            <Patterns player={player} pattern={state.pattern} rate={state.rate} setPattern={(pattern) => change({ pattern })} setRate={(rate) => change({ rate })} act={act} why={why} />
          </Card>
        </div>
      </div>
    </>
  )
}
