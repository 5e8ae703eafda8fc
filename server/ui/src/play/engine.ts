// The engine is Weir's own Go code, compiled to WebAssembly (server/ui/play). All levels, weights and decisions on the
// page come from the engine, and TypeScript computes none of them. Times are in microseconds.

export interface Numbers {
  limit: number
  window: number // in ms, like max_delay
  burst: number // 0 means the same as limit
  max_delay: number // 0 means no maximum
}

export interface LaneInfo {
  id: string
  algorithm: string
  limit: string
  rule: string
  shadow: boolean
  max: number
  window: number
  offset: number // a time at which a window begins, or -1
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
  marks: Float64Array // three numbers per mark: index of the arrival, verdict, delay
  points: Float64Array // three numbers per point: time, value, and the part of the value that comes from the previous window
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
  // Both exist once the engine is loaded.
  var Go: new () => GoRuntime
  var weirPlay: (method: string, args: object) => { error?: string }
}

// call calls a method of the engine. If the engine returns an error, call throws it with the engine's message.
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
  void go.run(instance) // runs until the page is closed
}
