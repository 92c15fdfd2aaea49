#include "longspan/text/decode_stream.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

Tokenizer trained(const testing::TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "The quick brown fox number " + std::to_string(i) + ".\n";
  train_byte_level_bpe({folder.write("text.txt", text)}, 300, folder / "tokenizer");
  return Tokenizer::load(folder / "tokenizer");
}

}  // namespace

TEST_CASE("decode stream: whole characters, and all of them together the decoded text") {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = trained(folder);
  const auto stream_of = [&](const std::vector<int32_t>& ids, bool skip_special) {
    DecodeStream stream(tokenizer, skip_special);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = stream.step(id);
      CHECK(piece.find("\xef\xbf\xbd") == std::string::npos);
      text += piece;
    }
    return text + stream.finish();
  };
  for (const std::string text :
       {"", " The quick\n\n brown 🙂 日本語<|im_end|>\n", "👩‍👩‍👧"}) {
    const auto ids = tokenizer.encode(text);
    CHECK(stream_of(ids, false) == text);
    CHECK(stream_of(ids, true) == tokenizer.decode(ids, true));
  }
  // An answer that ends inside a character.
  auto ids = tokenizer.encode("ab 日");
  ids.pop_back();
  CHECK(stream_of(ids, false) == tokenizer.decode(ids));
}

TEST_CASE("decode stream: bytes that are no character come out as time goes by") {
  testing::TemporaryFolder folder;
  const Tokenizer tokenizer = trained(folder);
  // Token ids of bytes: of the first of a character's four bytes, so that no two combine, and of a
  // whole character.
  const std::vector<int32_t> smile = tokenizer.encode("🙂");
  REQUIRE(smile.size() == 4);
  std::vector<int32_t> ids(20'000, smile[0]);
  ids.insert(ids.end(), smile.begin(), smile.end());
  DecodeStream stream(tokenizer);
  std::string text;
  size_t most_held = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    text += stream.step(ids[i]);
    most_held = std::max(most_held, i + 1 - std::min(i + 1, text.size() / 3));
  }
  CHECK(most_held <= 16);
  CHECK(text + stream.finish() == tokenizer.decode(ids));
  CHECK(text.ends_with("🙂"));
}

}  // namespace longspan
