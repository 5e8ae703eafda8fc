// Loading takes up as much room as the content will, so that nothing moves when the content arrives.
export function Loading({ rows = 6 }: { rows?: number }) {
  return (
    <div class="loading" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, i) => (
        <div key={i} />
      ))}
    </div>
  )
}
