#include "textflag.h"

// func prefetch(s *slot)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVD s+0(FP), R0
	PRFM (R0), PLDL1KEEP
	PRFM 48(R0), PLDL1KEEP
	RET
