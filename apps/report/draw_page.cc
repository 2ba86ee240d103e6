// draw_page OUT.html [CHARTS]: writes the page that standard input describes as JSON (page_json.h), and each
// of its charts as an SVG file into the folder CHARTS. tools/reproduce.py calls it.

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "apps/report/page_json.h"

namespace kvasir {
namespace {

Status write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? Status() : error(ErrorCode::kInvalidArgument, "{} cannot be written", path.string());
}

Status write_page(const std::string& json, const std::filesystem::path& page,
                  const std::filesystem::path& charts) {
  KV_ASSIGN_OR_RETURN(const DrawnPage drawn, draw_page(json));
  if (!charts.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(charts, failed);
    for (const auto& [name, svg] : drawn.charts) {
      KV_RETURN_IF_ERROR(write_file(charts / (name + ".svg"), svg));
    }
  }
  return write_file(page, drawn.html);
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "draw_page OUT.html [CHARTS], and the page as JSON on standard input\n";
    return 2;
  }
  const std::string json(std::istreambuf_iterator<char>(std::cin), {});
  const kvasir::Status written = kvasir::write_page(json, argv[1], argc == 3 ? argv[2] : "");
  if (written.ok()) return 0;
  std::cerr << "draw_page: " << written.message() << '\n';
  return 1;
}
