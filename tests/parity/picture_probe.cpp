// Runs longspan/pictures for the Python tests: one JSON request per line on stdin, one JSON answer
// per line on stdout, or {"error": message} for a UserError. Pixels go to files.
#include <ATen/ATen.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/pictures/frame_reader.h"
#include "longspan/pictures/picture.h"
#include "longspan/pictures/resample.h"
#include "longspan/pictures/video_sample.h"

using nlohmann::json;

namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write(const std::string& path, const void* data, size_t size) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
}

std::optional<longspan::PictureLimits> limits_of(const json& request) {
  const auto found = request.find("limits");
  if (found == request.end()) return std::nullopt;
  longspan::PictureLimits limits;
  limits.max_pixels = found->value("max_pixels", limits.max_pixels);
  limits.min_pixels = found->value("min_pixels", limits.min_pixels);
  limits.as_qwen2_vl = found->value("as_qwen2_vl", limits.as_qwen2_vl);
  return limits;
}

/// The frames that a model sees of a video file, as RGB one after the other.
json answer_on_video(const json& request) {
  const std::string path = request.at("file");
  const longspan::VideoSample sample =
      longspan::sample_video(path, {request.at("fps"), request.at("maxlen")});
  longspan::FrameReader reader;
  const uint64_t version = request.value("version", longspan::VideoFile(path).version());
  std::ofstream out(std::string(request.at("out")), std::ios::binary);
  for (const int64_t frame : sample.frames) {
    for (const longspan::Raster& raster : reader.read(path, version, {frame})) {
      out.write(reinterpret_cast<const char*>(raster.pixels.data()),
                static_cast<std::streamsize>(raster.pixels.size()));
    }
  }
  return {{"size", {sample.size.width, sample.size.height}},
          {"frames", sample.frames},
          {"times", sample.times},
          {"fps", sample.fps}};
}

json answer(const json& request) {
  const std::string what = request.at("do");
  if (what == "video") return answer_on_video(request);
  const std::string bytes = bytes_of(request.at("file"));
  const std::string place = "data set pictures, row 1";
  if (what == "rgb") {  // the picture in RGB, after LLaMA-Factory's limits
    const auto raster = longspan::limited_picture(bytes, place, limits_of(request));
    write(request.at("out"), raster.pixels.data(), raster.pixels.size());
    const auto size = longspan::picture_size(bytes, place);
    return {{"size", {raster.size.width, raster.size.height}},
            {"header", {size.width, size.height}}};
  }
  if (what == "resize") {  // in the picture's own mode
    const auto raster = longspan::resized(longspan::decode_picture(bytes, place),
                                          {request.at("width"), request.at("height")});
    write(request.at("out"), raster.pixels.data(), raster.pixels.size());
    return {{"mode", static_cast<int>(raster.mode)}};
  }
  const auto processor = longspan::load_picture_processor(request.at("folder"));
  const auto values = longspan::pixel_values(bytes, place, processor, limits_of(request));
  const at::Tensor patches = values.patches_PX.contiguous();
  write(request.at("out"), patches.data_ptr(), patches.nbytes());
  return {{"shape", patches.sizes().vec()},
          {"grid", {values.grid.t, values.grid.h, values.grid.w}},
          {"tokens", longspan::num_features(values.grid, processor)}};
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    json result;
    try {
      result = answer(json::parse(line));
    } catch (const longspan::UserError& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}
