#!/usr/bin/env python3
"""The layer and style checks find a violating file and let a clean one through: a small tree for each."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import layers  # noqa: E402


class Tree(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        for name in (
            "base/a.hpp",
            "io/a.hpp",
            "runtime/a.hpp",
            "daemon/protocol/a.hpp",
            "clients/zoom/a.hpp",
            "clients/cli/a.hpp",
            "include/terrace/a.h",
        ):
            self.put(name, "#pragma once\n")

    def put(self, name, text):
        path = os.path.join(self.dir.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def order(self, name, text):
        self.put(name, text)
        return layers.check_order(self.dir.name)


class Order(Tree):
    def test_a_file_may_include_from_its_left(self):
        text = '#include "io/a.hpp"\n#include "terrace/a.h"\n#include "a.hpp"\n'
        self.assertEqual(self.order("runtime/x.cpp", text), [])

    def test_a_file_may_not_include_from_its_right(self):
        bad = self.order("io/x.cpp", '// why\n#include "runtime/a.hpp"\n')
        self.assertEqual(len(bad), 1)
        self.assertTrue(bad[0].startswith("io/x.cpp:2:"), bad)

    def test_angle_brackets_do_not_hide_an_include(self):
        self.assertEqual(len(self.order("base/x.hpp", "#include <io/a.hpp>\n")), 1)

    def test_a_path_with_dots_does_not_hide_an_include(self):
        self.assertEqual(len(self.order("base/x.hpp", '#include "../runtime/a.hpp"\n')), 1)

    def test_a_header_that_does_not_exist_yet_counts_too(self):
        self.assertEqual(len(self.order("base/x.hpp", '#include "tiering/later.hpp"\n')), 1)

    def test_the_server_does_not_see_the_runtime(self):
        self.assertEqual(self.order("daemon/server/x.cpp", '#include "daemon/protocol/a.hpp"\n'), [])
        self.assertEqual(len(self.order("daemon/server/x.cpp", '#include "runtime/a.hpp"\n')), 1)

    def test_a_client_is_a_stranger_and_the_command_line_is_not(self):
        self.assertEqual(self.order("clients/zoom/x.cpp", '#include "terrace/a.h"\n#include "a.hpp"\n'), [])
        self.assertEqual(self.order("clients/cli/x.cpp", '#include "runtime/a.hpp"\n'), [])
        self.assertEqual(len(self.order("clients/zoom/x.cpp", '#include "base/a.hpp"\n')), 1)
        self.assertEqual(len(self.order("clients/zoom/x.cpp", '#include "clients/cli/a.hpp"\n')), 1)

    def test_tests_are_no_layer(self):
        self.put("tests/x.hpp", "")
        self.assertEqual(len(self.order("base/x.cpp", '#include "../tests/x.hpp"\n')), 1)

    def test_walls(self):
        self.assertEqual(self.order("io/uring_device.cpp", "#include <liburing.h>\n"), [])
        self.assertEqual(len(self.order("io/store.cpp", "#include <liburing.h>\n")), 1)
        self.put("io/store.cpp", "")
        self.assertEqual(self.order("runtime/pager.cpp", "#include <linux/userfaultfd.h>\n"), [])
        self.assertEqual(len(self.order("io/store.cpp", "#include <linux/userfaultfd.h>\n")), 1)

    def test_public_headers_use_standard_headers_only(self):
        self.assertEqual(self.order("include/terrace/x.hpp", "#include <stdint.h>\n#include <memory>\n"), [])
        self.assertEqual(len(self.order("include/terrace/x.hpp", "#include <sys/mman.h>\n")), 1)


class Style(Tree):
    def style(self, name, text):
        self.put(name, text)
        return layers.check_style(self.dir.name)

    def test_long_lines_long_files_and_machine_paths_are_found(self):
        self.assertEqual(self.style("io/x.cpp", "x" * 110 + "\n"), [])
        self.assertEqual(len(self.style("io/x.cpp", "x" * 111 + "\n")), 1)
        self.assertEqual(self.style("io/x.cpp", "x\n" * 800), [])
        self.assertEqual(len(self.style("io/x.cpp", "x\n" * 801)), 1)
        self.assertEqual(len(self.style("io/x.cpp", "// see /" + "work/shared\n")), 1)
        self.assertEqual(len(self.style("io/x.cpp", "x \n")), 1)
        self.assertEqual(len(self.style("io/x.cpp", "x")), 1)

    def test_scripts_without_a_suffix_are_read(self):
        self.assertEqual(len(self.style("scripts/x", "cd /" + "root/x\n")), 1)


class Headers(Tree):
    def test_a_header_that_leans_on_its_includer_is_found(self):
        self.put("io/x.hpp", "#pragma once\ninline std::size_t n() { return 0; }\n")
        bad = layers.check_headers(self.dir.name)
        self.assertEqual(len(bad), 1)
        self.assertTrue(bad[0].startswith("io/x.hpp: does not compile alone as c++"), bad)

    def test_a_public_header_must_be_c_as_well(self):
        self.put("include/terrace/x.h", "namespace terrace {}\n")
        bad = layers.check_headers(self.dir.name)
        self.assertEqual(len(bad), 1)
        self.assertIn("alone as c\n", bad[0])


if __name__ == "__main__":
    unittest.main()
