fn main() {
    let a: Vec<String> = std::env::args().collect();
    if a[1] == "serve" {
        let c = isthmus_host::Config::new(&a[2], 128 << 20);
        let s = isthmus_host::Service::start(c, std::sync::Arc::new(|e| eprintln!("{e:?}"))).unwrap();
        println!("{}", s.attach_socket().display());
        loop { std::thread::sleep(std::time::Duration::from_secs(1)); eprintln!("{}", s.stats().to_json()); }
    } else {
        isthmus_bench::lane::rank_main(a[2].parse().unwrap(), false).unwrap();
    }
}
