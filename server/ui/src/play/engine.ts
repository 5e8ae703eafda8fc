// The engine is Weir's own Go code as WebAssembly (server/ui/play). What the page shows of levels, weights and decisions comes
// from there; nothing of it is worked out in TypeScript. Times are microseconds.

export interface Numbers {
  limit: number
  window: number // ms, as is max_delay
  burst: number // 0: the limit
  max_delay: number // 0: as long as the queue is
}

export interface LaneInfo {
  id: string
  algorithm: string
  limit: string
  rule: string
  shadow: boolean
  max: number
  window: number
  offset: number // when a window begins, or -1
}

export interface Scene {
  lanes: LaneInfo[]
  span: number
}

export interface Counts {
  sent: number
  admitted: number
  refused: number
  delayed: number
  peak: number
  waiting: number
}

export interface LaneFrame extends Counts {
  marks: Float64Array // number of the arrival, verdict, delay
  points: Float64Array // moment, value, part of it that is the window before's
  value: number
  base: number
  text: string
  from: number
}

export interface Frame {
  at: number
  fresh: boolean
  arrivals: Float64Array
  coming: Float64Array
  lanes: LaneFrame[]
  whole: LaneFrame
  text: string
  done: boolean
  full: string
}

export interface Demo {
  id: string
  title: string
  lane: string
  from: number
  until: number
}

export interface Problem {
  line: number
  column: number
  text: string
  hint: string
}

export interface TypedRequest {
  method: string
  path: string
  key: string
  ip: string
  user: string
  org: string
  tier: string
  cost: number
}

export interface Explanation {
  reason: string
  entry: string
  tier: string
  tier_why: string
  rules: { id: string; applies: boolean; why: string; by: string[]; cost: number; limits: string[]; from: string }[]
}

interface Methods {
  compare: [Numbers, Scene]
  demos: [object, { demos: Demo[] }]
  show: [{ id: string }, Demo]
  send: [{ count: number; over: number }, object]
  pattern: [{ kind: string; rate: number }, object]
  stop: [object, object]
  clear: [object, object]
  advance: [{ to: number }, Frame]
  step: [object, Frame]
  back: [object, Frame]
  rules: [{ text: string }, { problems: Problem[]; warnings: Problem[] }]
  ask: [TypedRequest, Scene & { explanation: Explanation }]
}

interface GoRuntime {
  importObject: WebAssembly.Imports
  run(i: WebAssembly.Instance): Promise<void>
}

declare global {
  // Both are there once the engine is loaded.
  var Go: new () => GoRuntime
  var weirPlay: (method: string, args: object) => { error?: string }
}

// call asks the engine. What it refuses is thrown, in its own words.
export function call<M extends keyof Methods>(method: M, args: Methods[M][0]): Methods[M][1] {
  const answer = globalThis.weirPlay(method, args)
  if (answer.error) throw new Error(answer.error)
  return answer as Methods[M][1]
}

// load fetches the engine and starts it.
export async function load() {
  await new Promise((done, failed) => {
    const script = document.createElement('script')
    script.src = '/play/wasm_exec.js'
    script.onload = done
    script.onerror = () => failed(new Error("The node didn't send /play/wasm_exec.js."))
    document.head.append(script)
  })
  const go = new globalThis.Go()
  const { instance } = await WebAssembly.instantiateStreaming(fetch('/play/weir.wasm'), go.importObject)
  void go.run(instance) // which goes on for as long as the page is open
}
