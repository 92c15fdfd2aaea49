// Any processor: vectors of 4 floats (SSE2, NEON).
#define INSTRUCTIONS "portable"
#define LANES 4
#define PANEL 2
#define ROWS 4
#include "longspan/attention/flash/tiles_impl.h"

namespace longspan::flash {

const Tiles* portable_tiles() { return &kTiles; }

}  // namespace longspan::flash
