package weir

const maxSplit = 64

func (r *rule) compileSplit(path string, bad *problems) {
	switch {
	case r.Split == 0:
	case r.Split < 2 || r.Split > maxSplit:
		bad.addf(path, "must be from 2 to %d, got %d", maxSplit, r.Split)
	case !r.Strict:
		bad.addf(path, "is for strict rules: busy counters of others are decided on the nodes, and needn't be split; leave it out")
	case r.Algorithm == SlidingLog || r.Algorithm == LeakyQueue:
		bad.addf(path, "%s can't be split: use token_bucket, leaky_bucket, fixed_window or sliding_window_counter", r.Algorithm)
	case r.Book || r.CountRefused:
		bad.addf(path, "can't stand beside past_limit, by which a part would go below zero while others have room: leave one of them out")
	default:
		r.parts = r.Split
	}
}
