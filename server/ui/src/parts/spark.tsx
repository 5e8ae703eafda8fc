// Spark is a small chart in a line of text or in a cell. It draws one or two series as areas, the second in front.
export function Spark({ values, over, label, max }: { values: number[]; over?: number[]; label: string; max?: number }) {
  const top = max ?? Math.max(1e-9, ...values)
  return (
    <svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label={label}>
      <path class="spark-a" d={area(values, top)} />
      {over && <path class="spark-b" d={area(over, top)} />}
    </svg>
  )
}

export function area(values: number[], top: number): string {
  if (!values.length) return ''
  const step = 100 / values.length
  let d = 'M0 20'
  values.forEach((v, i) => {
    const y = (20 - 19 * Math.min(1, v / top)).toFixed(1)
    d += `L${(i * step).toFixed(1)} ${y}L${((i + 1) * step).toFixed(1)} ${y}`
  })
  return `${d}L100 20Z`
}
