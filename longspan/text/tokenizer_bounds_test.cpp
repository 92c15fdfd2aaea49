// A tokenizer.json may come from anyone: inputs that would crash the crate give an error message.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/text/tokenizer.h"

namespace longspan {
namespace {

using nlohmann::json;

json byte_vocabulary() {
  return {{"type", "WordLevel"}, {"unk_token", "a"}, {"vocab", {{"a", 0}, {"b", 1}, {"the", 2}}}};
}

json whole() {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", json::array()},
          {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
          {"post_processor", nullptr}, {"decoder", nullptr},
          {"model", byte_vocabulary()}};
}

std::string error_of(const std::string& text, const std::string& config = "{}") {
  testing::TemporaryFolder folder;
  folder.write("tokenizer.json", text);
  folder.write("tokenizer_config.json", config);
  try {
    const Tokenizer tokenizer = Tokenizer::load(folder.path);
    tokenizer.decode(tokenizer.encode("the text a b"));
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing thrown";
}

void check_refused(const json& file, const std::string& part) {
  const std::string error = error_of(file.dump());
  CAPTURE(error);
  CHECK(error.find("tokenizer.json") != std::string::npos);
  CHECK(error.find(part) != std::string::npos);
  CHECK(error.find('\n') == std::string::npos);
  CHECK(error.size() < 1000);
}

/// The length of `bytes` must be a multiple of three.
std::string base64(const std::string& bytes) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i + 2 < bytes.size(); i += 3) {
    unsigned three = 0;
    for (size_t j = 0; j < 3; ++j) three = three << 8 | static_cast<unsigned char>(bytes[i + j]);
    for (int shift = 18; shift >= 0; shift -= 6) text += digits[three >> shift & 63];
  }
  return text;
}

json with(const std::string& key, json part) {
  json file = whole();
  file[key] = std::move(part);
  return file;
}

}  // namespace

TEST_CASE("tokenizer bounds: parts that fail later are refused by name") {
  REQUIRE(error_of(whole().dump()) == "nothing thrown");
  check_refused(with("pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}), "FixedLength");
  for (const char* kind : {"String", "Regex"}) {
    const json replace = {{"type", "Replace"}, {"pattern", {{kind, ""}}}, {"content", "x"}};
    check_refused(with("normalizer", replace), "pattern of Replace is empty");
    check_refused(with("decoder", replace), "pattern of Replace is empty");
    check_refused(with("normalizer", {{"type", "Sequence"}, {"normalizers", {replace}}}),
                  "pattern of Replace is empty");
    check_refused(with("pre_tokenizer", {{"type", "Split"},
                                         {"pattern", {{kind, ""}}},
                                         {"behavior", "Isolated"},
                                         {"invert", false}}),
                  "pattern of Split is empty");
  }
  for (const char* charsmap : {"", "AAAA", "/////w==", "AAQAAAAA", "!!!!!!!!", "AAEAAAAAAAA="}) {
    CAPTURE(charsmap);
    check_refused(with("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", charsmap}}),
                  "precompiled_charsmap is broken");
  }
  // A trie of 256 units that all lead out of it.
  std::string bytes = std::string("\0\4\0\0", 4) + std::string(1024, '\xff') + "abcd";
  const json leads_out = {{"type", "Precompiled"}, {"precompiled_charsmap", base64(bytes)}};
  check_refused(with("normalizer", leads_out), "what reads it gives up");
}

TEST_CASE("tokenizer bounds: models that give no two runs the same ids, or none") {
  json bpe = {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", json::array()}, {"dropout", 0.1}};
  check_refused(with("model", bpe), "dropout");
  // Also if a tokenizer class has its own pipeline.
  CHECK(error_of(with("model", bpe).dump(), R"({"tokenizer_class": "Qwen2Tokenizer"})")
            .find("dropout") != std::string::npos);
  bpe["dropout"] = 0.0;
  CHECK(error_of(with("model", bpe).dump()) == "nothing thrown");
  bpe["vocab"]["a"] = 4'000'000'000;
  check_refused(with("model", bpe), "the id of \"a\" is 4000000000");
  bpe["vocab"]["a"] = -1;
  check_refused(with("model", bpe), "the id of \"a\" is -1");
  check_refused(with("model", {{"type", "Unigram"}, {"vocab", json::array()}, {"unk_id", nullptr}}),
                "vocabulary is empty");
  check_refused(with("model", {{"type", "Unigram"}, {"vocab", {{"a", 0.0}}}, {"unk_id", 7}}),
                "is not a tokenizer");
  json file = whole();
  file["added_tokens"] = {{{"id", 3'000'000'000}, {"content", "x"}, {"special", true}}};
  check_refused(file, "an id is 3000000000");
}

TEST_CASE("tokenizer bounds: depth, size and kind of the file") {
  const auto times = [](const std::string& text, size_t count) {
    std::string all;
    for (size_t i = 0; i < count; ++i) all += text;
    return all;
  };
  for (const std::string& text :
       {times("[", 200'000), times("{\"a\":", 200'000),
        "{\"model\": " + times("[", 200'000) + times("]", 200'000) + "}"}) {
    CHECK(error_of(text).find("nested deeper than 512 levels") != std::string::npos);
  }
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 60; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  check_refused(with("normalizer", nested), "sequences are nested deeper");
  // Small values take many times their text in memory.
  CHECK(error_of("{\"x\": [" + times("0,", 9'000'000) + "0]}").find("8000000 values") !=
        std::string::npos);

  testing::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "tokenizer.json");
  CHECK_THROWS_WITH_AS(Tokenizer::load(folder.path), doctest::Contains("it is a folder"),
                       UserError);
  testing::TemporaryFolder large;
  large.write("tokenizer.json", "{}");
  std::filesystem::resize_file(large / "tokenizer.json", 200 << 20);
  CHECK_THROWS_WITH_AS(Tokenizer::load(large.path), doctest::Contains("it has more than 96 MiB"),
                       UserError);
  CHECK_THROWS_AS(Tokenizer::load(std::string("a\0b", 3)), UserError);
}

}  // namespace longspan
