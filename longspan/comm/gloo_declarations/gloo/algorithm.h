// Named by ProcessGroupGloo.hpp; see ../README.md.
#pragma once
