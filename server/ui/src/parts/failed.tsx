import type { ApiError } from '../api'
import { Button } from './button'
import { Empty } from './empty'

// Failed shows the server's error message in place of data that couldn't be loaded.
export function Failed({ error, retry }: { error: ApiError; retry?: () => void }) {
  return (
    <div role="alert">
      <Empty title={error.status === 0 ? 'No answer' : "This couldn't be loaded"}>
        <p>{error.message}</p>
        {error.status > 0 && (
          <p class="muted mono">
            {error.status} {error.code}
          </p>
        )}
        {retry && <Button onClick={retry}>Try again</Button>}
      </Empty>
    </div>
  )
}
