#include "longspan/text/terminal_text.h"

#include <doctest/doctest.h>

namespace longspan {

TEST_CASE("terminal text: control characters are written out, everything else stays") {
  CHECK(without_controls("a\tb\nc") == "a\tb\nc");
  CHECK(without_controls("\x1b[31mred\x1b]0;title\x07") == "\\x1b[31mred\\x1b]0;title\\x07");
  CHECK(without_controls("over\rwrite\x08\x7f") == "over\\rwrite\\x08\\x7f");
  CHECK(without_controls("\xc2\x9b"
                         "2J") == "\\u009b2J");  // CSI in one character
  CHECK(without_controls("été 日本語 🙂 \xc2\xa0") == "été 日本語 🙂 \xc2\xa0");
}

}  // namespace longspan
