#include "longspan/report/token_pieces.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

using Kind = TokenPiece::Kind;

Tokenizer bytes_tokenizer(const testing::TemporaryFolder& folder) {
  train_byte_level_bpe({folder.write("text.txt", "a b c")}, 259, folder / "tokenizer");
  return Tokenizer::load(folder / "tokenizer");
}

/// The labels of the tokens in [begin, end) equal the tokens.
Sample sample_of(std::vector<int32_t> ids, size_t begin, size_t end) {
  Sample sample{.input_ids = ids, .labels = std::vector<int32_t>(ids.size(), kIgnoreLabel)};
  for (size_t i = begin; i < end; ++i) sample.labels[i] = ids[i];
  return sample;
}

constexpr PieceLimits kAll{.run = 1000, .sample = 1000};

TEST_CASE("pieces: characters of several tokens, special tokens, labels") {
  const testing::TemporaryFolder folder;
  const Tokenizer tokenizer = bytes_tokenizer(folder);
  const std::string text = "é<|im_end|>ok";
  const std::vector<int32_t> ids = tokenizer.encode(text);
  REQUIRE(ids.size() == 5);
  // The first label does not count.
  const auto pieces = pieces_of(sample_of(ids, 0, 3), tokenizer, kAll);
  REQUIRE(pieces.size() == 4);
  CHECK(pieces[0].text == "é");
  CHECK(pieces[0].ids == std::vector<int32_t>{ids[0], ids[1]});
  CHECK(pieces[1].kind == Kind::kSpecial);
  CHECK(pieces[1].is_trained);
  CHECK(pieces[2].kind == Kind::kText);
  CHECK(!pieces[2].is_trained);
  // Half of a character.
  const auto half = pieces_of(sample_of({ids[3], ids[0]}, 0, 0), tokenizer, kAll);
  REQUIRE(half.size() == 2);
  CHECK(half[1].text == "\xef\xbf\xbd");
}

TEST_CASE("pieces: a picture is one piece") {
  const testing::TemporaryFolder folder;
  const Tokenizer tokenizer = bytes_tokenizer(folder);
  const int32_t a = tokenizer.encode("a")[0];
  Sample sample = sample_of(std::vector<int32_t>(9, a), 7, 9);
  for (const int64_t features : {4, 2}) {
    Picture& picture = sample.pictures.emplace_back();
    picture.num_features = features;
    picture.is_video = features == 2;
  }
  sample.columns[kFeatureColumn] = {at::tensor({-1, 0, 1, 2, 3, 4, 5, -1, -1}, at::kLong), -1};
  const auto pieces = pieces_of(sample, tokenizer, kAll);
  REQUIRE(pieces.size() == 5);
  CHECK(pieces[1].text == "<image: 4 tokens>");
  CHECK(pieces[2].text == "<video: 2 tokens>");
  CHECK(pieces[2].kind == Kind::kPicture);
  CHECK(pieces[4].is_trained);
}

TEST_CASE("pieces: long samples have gaps, which count their tokens") {
  const testing::TemporaryFolder folder;
  const Tokenizer tokenizer = bytes_tokenizer(folder);
  std::vector<int32_t> ids(1000);
  const int32_t a = tokenizer.encode("a")[0];
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = a + static_cast<int32_t>(i % 20);
  const Sample sample = sample_of(ids, 600, 1000);
  const auto texts_of = [&](const PieceLimits& most) {
    std::vector<std::string> gaps;
    int64_t num_shown = 0;
    for (const TokenPiece& piece : pieces_of(sample, tokenizer, most)) {
      if (piece.kind == Kind::kGap) gaps.push_back(piece.text);
      num_shown += std::ssize(piece.ids);
    }
    return std::pair(num_shown, gaps);
  };
  const auto [num_shown, gaps] = texts_of({.run = 90, .sample = 1000});
  CHECK(num_shown == 180);
  CHECK(gaps == std::vector<std::string>{"[... 510 tokens, none trained ...]",
                                         "[... 310 tokens, all trained ...]"});
  // 75 of the first 90 shown tokens and 25 of the last ones.
  const auto [fewer, one_gap] = texts_of({.run = 90, .sample = 100});
  CHECK(fewer == 100);
  CHECK(std::accumulate(one_gap.begin(), one_gap.end(), 0, [](int sum, const std::string& gap) {
          return sum + std::stoi(gap.substr(5));
        }) == 900);
}

}  // namespace
}  // namespace longspan
