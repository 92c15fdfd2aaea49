// AVX-512: 6 x 4 sums of 16 floats fill 24 of the 32 registers.
#include "longspan/attention/flash/flash_tasks.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define INSTRUCTIONS "avx512"
#define LANES 16
#define PANEL 4
#define ROWS 6
#include "longspan/attention/flash/tiles_impl.h"

namespace longspan::flash {
const Tiles* avx512_tiles() { return &kTiles; }
}  // namespace longspan::flash
#else
namespace longspan::flash {
const Tiles* avx512_tiles() { return nullptr; }
}  // namespace longspan::flash
#endif
