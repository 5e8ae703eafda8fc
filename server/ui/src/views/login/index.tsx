import type { ViewProps } from '../../app'
import { ThemeSwitch } from '../../nav'
import { Icon } from '../../parts/icon'
import { Page } from '../../parts/page'
import { navigate, useRoute } from '../../router'
import { LoginForm } from './form'
import { next } from './next'
import './login.css'

export default function Login({ onLogin }: ViewProps) {
  const { query } = useRoute()
  return (
    <main class="alone">
      <div class="login">
        <p class="brand">
          <Icon name="weir" /> Weir
          <span>
            <ThemeSwitch />
          </span>
        </p>
        <Page
          title="Log in"
          lead={
            <>
              With your token for this node's admin API. Whoever runs the node gave it to you, or has it in <code>WEIR_ADMIN_TOKEN</code>.
            </>
          }
        >
          <LoginForm
            onLogin={(s) => {
              onLogin?.(s)
              navigate(next(query.get('next'), location.origin), { replace: true })
            }}
          />
        </Page>
        <p class="muted">
          Just looking? The <a href="/play">playground</a> needs no token.
        </p>
      </div>
    </main>
  )
}
