import '../style/tokens.css'
import '../style/base.css'
import '../style/parts.css'
import '../style/shell.css'
import './play.css'
import { render } from 'preact'
import { startKeyboard } from '../keyboard'
import { startTheme } from '../theme'
import { App } from './app'

startTheme()
startKeyboard()
document.title = 'Playground · Weir'
render(<App />, document.getElementById('app')!)
