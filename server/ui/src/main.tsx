import './style/tokens.css'
import './style/base.css'
import './style/shell.css'
import './style/parts.css'
import { render } from 'preact'
import { App } from './app'
import { startKeyboard } from './keyboard'
import { startRouter } from './router'
import { startTheme } from './theme'

startTheme()
startRouter()
startKeyboard()
render(<App />, document.getElementById('app')!)
