import type { ComponentType } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { Button } from './parts/button'
import { Empty } from './parts/empty'
import { Page } from './parts/page'

type Load<P> = () => Promise<{ default: ComponentType<P> }>

const loaded = new Map<unknown, unknown>()

export const fetchCode = <P,>(load: Load<P>) => load().then((m) => void loaded.set(load, m.default))

// Later is a part of the console whose code is loaded when it is first opened. load must be the same function each
// time.
export function Later<P extends object>({ title, load, props }: { title: string; load: Load<P>; props: P }) {
  const Component = loaded.get(load) as ComponentType<P> | undefined
  const [, again] = useState(0)
  const [failed, setFailed] = useState(false)
  useEffect(() => {
    if (Component) return
    fetchCode(load).then(
      () => again((n) => n + 1),
      () => setFailed(true),
    )
  }, [])
  if (failed) {
    return (
      <Page title={title}>
        <Empty title="This view couldn't be loaded">
          <p>The node doesn't answer, or it was upgraded and has another console now.</p>
          <Button onClick={() => location.reload()}>Load the page again</Button>
        </Empty>
      </Page>
    )
  }
  return Component ? <Component {...props} /> : <div aria-busy="true" />
}
