// The shell: who is logged in, the navigation, and the view that the address names.
import { useEffect, useRef, useState } from 'preact/hooks'
import * as api from './api'
import { asError } from './load'
import { useKeys } from './keyboard'
import { Help } from './help'
import { fetchCode, Later } from './later'
import { Nav } from './nav'
import { Dialog } from './parts/dialog'
import { Empty } from './parts/empty'
import { Failed } from './parts/failed'
import { Page } from './parts/page'
import { Toasts } from './parts/toast'
import { navigate, to, useRoute } from './router'
import { SessionContext } from './session'
import { views } from './views'
import { LoginForm } from './views/login/form'
import type { Session } from './wire'

type Who = { session?: Session; error?: api.ApiError }

export function App() {
  const route = useRoute()
  const [who, setWho] = useState<Who>({})
  const [help, setHelp] = useState(false)
  const [ended, setEnded] = useState(false) // the session ended while a view was open
  const waiting = useRef<((again: boolean) => void)[]>([]) // requests that wait for a new session
  const known = useRef(false)
  known.current = Boolean(who.session) && route.view !== 'login'

  const ask = () =>
    api.session().then(
      (session) => setWho({ session }),
      (e) => {
        const error = asError(e)
        if (error.status === 401) toLogin()
        else setWho({ error })
      },
    )
  useEffect(() => {
    api.setUnauthorized(() => {
      if (!known.current) return toLogin(), Promise.resolve(false)
      setEnded(true)
      return new Promise((done) => waiting.current.push(done))
    })
    if (route.view !== 'login') void ask()
    const view = views.find((v) => v.path === route.view)
    if (view) fetchCode(view.load).catch(() => {}) // fetches the view's code while the session request is in flight
  }, [])

  // After a change of view, the next Tab moves into the view, unless the view has set the focus itself.
  useEffect(() => {
    const main = document.getElementById('main')
    if (!main?.contains(document.activeElement)) main?.focus({ preventScroll: true })
  }, [route.view])

  useKeys([
    { keys: '?', says: 'Show these keys', run: () => setHelp(true) },
    { keys: '/', says: 'Search', run: search },
    ...views.filter((v) => v.key).map((v) => ({ keys: `g ${v.key}`, says: `Go to ${v.title}`, run: () => navigate(to(v.path)) })),
  ])

  if (route.view === 'login') {
    return (
      <>
        <View key="login" name="login" onLogin={(session) => setWho({ session })} />
        <Toasts />
      </>
    )
  }
  if (who.error) {
    return (
      <main class="alone">
        <Failed error={who.error} retry={() => (setWho({}), void ask())} />
      </main>
    )
  }
  if (!who.session) return <main class="alone" aria-busy="true" />
  return (
    <SessionContext.Provider value={who.session}>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <div class="shell">
        <Nav current={route.view} onHelp={() => setHelp(true)} />
        <main id="main" tabIndex={-1}>
          <View key={route.view} name={route.view} />
        </main>
      </div>
      <Help open={help} onClose={() => setHelp(false)} />
      {ended && (
        // Drawn over the view, which keeps what the user has typed.
        <Dialog open title="Your session has ended" onClose={() => location.assign(to('login'))} dirty>
          <LoginForm
            onLogin={(session) => {
              setWho({ session })
              setEnded(false)
              waiting.current.splice(0).forEach((again) => again(true))
            }}
          />
        </Dialog>
      )}
      <Toasts />
    </SessionContext.Provider>
  )
}

function toLogin() {
  if (location.pathname === to('login')) return
  const here = location.pathname + location.search
  navigate(to('login', '', { next: here === to('') ? undefined : here }), { replace: true })
}

// In a view without a search of its own, the key opens Why, which can look up keys, rules and requests.
function search() {
  const field = document.querySelector<HTMLElement>('[data-search]')
  if (field) field.focus()
  else navigate(to('why'))
}

export interface ViewProps {
  onLogin?: (s: Session) => void
}

// View draws the view that the address names.
function View({ name, ...props }: { name: string } & ViewProps) {
  const view = views.find((v) => v.path === name)
  if (view) return <Later title={view.title} load={view.load} props={props} />
  return (
    <Page title="Not found">
      <Empty title="There is no such page">
        <p>
          Check the address, or start from <a href={to('')}>Now</a>.
        </p>
      </Empty>
    </Page>
  )
}
