// libFuzzer's two functions. The environment variable LONGSPAN_FUZZ_READER selects the reader that
// gets the bytes. Without it, prints the names of all readers.
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "longspan/base/user_error.h"

namespace longspan::fuzz {
namespace {

namespace fs = std::filesystem;

struct Reader {
  std::string_view name;
  void (*read)(std::string_view input);
};

std::vector<Reader>& readers() {
  static std::vector<Reader> all;
  return all;
}

const Reader* chosen = nullptr;

void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

Registration::Registration(const char* name, void (*read)(std::string_view input)) {
  readers().push_back({name, read});
}

int choose(std::string_view& input, int count) {
  if (input.empty()) return 0;
  const auto byte = static_cast<unsigned char>(input[0] - '0');
  input.remove_prefix(1);
  return byte % count;
}

std::vector<std::string> pieces(std::string_view input, size_t count) {
  constexpr std::string_view kBetween = "\n%%\n";
  std::vector<std::string> found;
  while (found.size() + 1 < count) {
    const size_t end = std::min(input.find(kBetween), input.size());
    found.emplace_back(input.substr(0, end));
    input.remove_prefix(std::min(end + kBetween.size(), input.size()));
  }
  found.emplace_back(input);
  return found;
}

std::vector<std::string> lines(std::string_view input) {
  std::vector<std::string> found;
  for (;;) {
    const size_t end = std::min(input.find('\n'), input.size());
    found.emplace_back(input.substr(0, end));
    if (end == input.size()) return found;
    input.remove_prefix(end + 1);
  }
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "promised, but not so: %s\n", what);
  std::abort();
}

const std::string& lasting_folder() {
  static const std::string path = [] {
    std::string made = (fs::temp_directory_path() / "longspan-fuzz-XXXXXX").string();
    require(::mkdtemp(made.data()) != nullptr, "a temporary folder can be made");
    return made;
  }();
  return path;
}

Folder::Folder() : path_(lasting_folder() + "/input") {
  fs::remove_all(path_);
  fs::create_directory(path_);
}

Folder::~Folder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::string Folder::write(const std::string& name, std::string_view bytes) const {
  const fs::path path = fs::path(path_) / name;
  fs::create_directories(path.parent_path());
  write_bytes(path.string(), bytes);
  return path.string();
}

const std::string& small_tokenizer_folder() {
  static const std::string folder = [] {
    const std::string text = lasting_folder() + "/text.txt";
    std::string words;
    for (int i = 0; i < 200; ++i) words += "the user asks, the assistant answers: yes and no. ";
    write_bytes(text, words);
    const std::string made = lasting_folder() + "/tokenizer";
    train_byte_level_bpe({text}, 300, made);
    return made;
  }();
  return folder;
}

const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(small_tokenizer_folder());
  return tokenizer;
}

const char* const kSmallModel =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300,
 "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
 "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-05,
 "tie_word_embeddings": true, "rope_theta": 10000.0})";

}  // namespace longspan::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace longspan::fuzz;
  std::ranges::sort(readers(), {}, &Reader::name);
  const char* wanted = std::getenv("LONGSPAN_FUZZ_READER");
  for (const Reader& reader : readers()) {
    if (wanted == nullptr) std::printf("%s\n", std::string(reader.name).c_str());
    if (wanted != nullptr && reader.name == wanted) chosen = &reader;
  }
  if (chosen == nullptr) {
    if (wanted != nullptr) std::fprintf(stderr, "there is no reader %s\n", wanted);
    std::exit(wanted != nullptr);
  }
  lasting_folder();  // created first, so that its name outlives later exit handlers
  std::atexit([] {
    std::error_code error;
    std::filesystem::remove_all(lasting_folder(), error);
  });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    longspan::fuzz::chosen->read({reinterpret_cast<const char*>(data), size});
  } catch (const longspan::UserError&) {
    // A user error, which the program prints before it ends with status 1.
  }
  return 0;
}
