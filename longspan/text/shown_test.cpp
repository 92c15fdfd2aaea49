#include "longspan/text/shown.h"

#include <doctest/doctest.h>

#include <string>

namespace longspan {

TEST_CASE("shown: what commands a terminal is written out, everything else stays") {
  CHECK(shown("a\tb\nc") == "a\tb\nc");
  CHECK(shown("\x1b[31mred\x1b]0;title\x07") == "\\x1b[31mred\\x1b]0;title\\x07");
  CHECK(shown("over\rwrite\x08\x7f") == "over\\rwrite\\x08\\x7f");
  CHECK(shown(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(shown("\xc2\x9b"
              "2J") == "\\u009b2J");  // CSI in one character
  CHECK(shown("é 日本語 🙂 \xc2\xa0 עברית") == "é 日本語 🙂 \xc2\xa0 עברית");
}

TEST_CASE("shown: what turns or breaks a line is written out") {
  CHECK(shown("user\xe2\x80\xaenimda") == "user\\u202enimda");
  CHECK(shown("\xe2\x80\xaa\xe2\x81\xa6\xe2\x81\xa9") == "\\u202a\\u2066\\u2069");
  CHECK(shown("\xe2\x80\xa8\xe2\x80\xa9") == "\\u2028\\u2029");
  CHECK(shown("\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa") ==
        "\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa");  // neighbours of these characters
}

TEST_CASE("shown: bytes that are no UTF-8 are written out, one by one") {
  CHECK(shown("\x9b"
              "31m") == "\\x9b31m");  // CSI of 8-bit terminals
  CHECK(shown("caf\xe9") == "caf\\xe9");
  CHECK(shown("\xe2\x80") == "\\xe2\\x80");                               // cut
  CHECK(shown("\xc0\x9b \xe0\x82\x9b") == "\\xc0\\x9b \\xe0\\x82\\x9b");  // overlong encodings
  CHECK(shown("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // half of a surrogate pair
  CHECK(shown("\xf4\x90\x80\x80\xff") == "\\xf4\\x90\\x80\\x80\\xff");
  CHECK(shown("\xe2\x28\xa1") == "\\xe2(\\xa1");
}

TEST_CASE("shown: once is as good as twice") {
  const std::string once = shown("\x1b[0m \xe2\x80\xae \xff \r");
  CHECK(shown(once) == once);
}

TEST_CASE("shown: a preview ends between two characters") {
  CHECK(shortened("short", 5) == "short");
  CHECK(shortened("longer", 5) == "longe...");
  CHECK(shortened("日本語", 4) == "日...");
  CHECK(shortened("日本語", 6) == "日本...");
}

}  // namespace longspan
