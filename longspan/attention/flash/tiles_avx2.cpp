// AVX2 and FMA: 6 x 2 sums of 8 floats fill 12 of the 16 registers.
#include "longspan/attention/flash/flash_tasks.h"

#if defined(__AVX2__) && defined(__FMA__)
#define INSTRUCTIONS "avx2"
#define LANES 8
#define PANEL 2
#define ROWS 6
#include "longspan/attention/flash/tiles_impl.h"

namespace longspan::flash {
const Tiles* avx2_tiles() { return &kTiles; }
}  // namespace longspan::flash
#else
namespace longspan::flash {
const Tiles* avx2_tiles() { return nullptr; }
}  // namespace longspan::flash
#endif
