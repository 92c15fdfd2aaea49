#include "longspan/checkpoint/state_parts.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <filesystem>

#include "longspan/checkpoint/safetensors.h"
#include "longspan/config/user_error.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

struct TemporaryPlace {
  std::string path;
  TemporaryPlace() {
    char name[] = "/tmp/longspan-state-test-XXXXXX";
    path = mkdtemp(name);
    fs::create_directory(path + "/training_state");
  }
  ~TemporaryPlace() { fs::remove_all(path); }
};

/// A parameter of 1000 numbers, in the runs that `cuts` make.
std::vector<StatePiece> pieces_of(const std::string& name, const std::vector<int64_t>& cuts) {
  std::vector<StatePiece> pieces;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const at::Tensor values = at::arange(cuts[i], cuts[i + 1], at::kFloat);
    pieces.push_back(
        {name, cuts[i], cuts[i + 1], 7, {{"exp_avg", values}, {"exp_avg_sq", values * 2}}});
  }
  return pieces;
}

}  // namespace

TEST_CASE("training state: any cut is read back as any other") {
  const TemporaryPlace place;
  const std::vector<StatePiece> pieces = pieces_of("w", {0, 1, 333, 1000});
  write_state_part(place.path + "/" + state_part_name(1, 2), {pieces[2]});
  write_state_part(place.path + "/" + state_part_name(2, 2), {pieces[0], pieces[1]});
  const StateReader reader(place.path);
  for (const auto& [begin, end] :
       {std::pair<int64_t, int64_t>{0, 1000}, {5, 6}, {0, 2}, {300, 999}}) {
    StatePiece piece{"w", begin, end, 0, {}};
    piece.tensors["exp_avg_sq"] = at::empty({end - begin}, at::kFloat);
    reader.read(piece);
    CHECK(piece.num_steps == 7);
    CHECK(at::equal(piece.tensors["exp_avg_sq"], at::arange(begin, end, at::kFloat) * 2));
  }
}

TEST_CASE("training state: what is not there is an error, never zeros") {
  const TemporaryPlace place;
  write_state_part(place.path + "/" + state_part_name(1, 1), {pieces_of("w", {10, 20})[0]});
  const StateReader reader(place.path);
  const auto read = [&](const std::string& name, const char* what, int64_t begin, int64_t end) {
    StatePiece piece{name, begin, end, 0, {}};
    piece.tensors[what] = at::empty({end - begin}, at::kFloat);
    reader.read(piece);
  };
  CHECK_NOTHROW(read("w", "exp_avg", 10, 20));
  CHECK_THROWS_AS(read("w", "exp_avg", 9, 20), UserError);
  CHECK_THROWS_AS(read("w", "exp_avg", 10, 21), UserError);
  CHECK_THROWS_AS(read("w", "other", 10, 20), UserError);
  CHECK_THROWS_AS(read("v", "exp_avg", 10, 20), UserError);
  CHECK_THROWS_AS(reader.read_values("w", 10, 20), UserError);
}

TEST_CASE("training state: values are the master's, else the weights'") {
  const TemporaryPlace place;
  const at::Tensor exact = at::rand({4, 5}), rounded = exact.to(at::kBFloat16);
  write_safetensors(place.path + "/model.safetensors", {{"w", rounded}, {"v", exact}});
  StatePiece piece = pieces_of("w", {0, 20})[0];
  piece.tensors["master"] = exact.flatten();
  write_state_part(place.path + "/" + state_part_name(1, 1), {piece, pieces_of("v", {0, 20})[0]});
  const StateReader reader(place.path);
  CHECK(at::equal(reader.read_values("w", 3, 20), exact.flatten().narrow(0, 3, 17)));
  CHECK(at::equal(reader.read_values("v", 3, 20), exact.flatten().narrow(0, 3, 17)));
}

}  // namespace longspan
