import { percent } from '../format'

// Meter is a bar that shows how much of something is used. Above 80% it has the color of a warning, and at 100% it is
// red. The text beside it says the same.
export function Meter({ share, label }: { share: number; label: string }) {
  const used = Math.max(0, Math.min(1, share))
  return (
    <svg class={`meter ${used >= 1 ? 'bad' : used >= 0.8 ? 'warn' : ''}`} viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={`${label}: ${percent(used)}`}>
      <rect class="meter-bg" width="100" height="6" />
      <rect class="meter-fg" width={used * 100} height="6" />
    </svg>
  )
}
