;;; Conses, vectors, strings and hash tables of about the given mebibytes, through generations of the garbage
;;; collector. Prints check sums.
(defvar *mebibytes* (parse-integer (car (last sb-ext:*posix-argv*))))
(declaim (optimize (speed 1) (safety 3)))

(defun mix (x)
  (declare (type (unsigned-byte 62) x))
  (let ((y (logand (* (logxor x (ash x -29)) 3037000493) #x3fffffffffffffff)))
    (logxor y (ash y -31))))

(defun build (n)
  (list n (format nil "entry ~D of ~36R" n (mix n))
        (make-array 24 :initial-contents (loop for i below 24 collect (mix (+ n i))))))

(defun sum (entries)
  (let ((total 0))
    (dolist (entry entries total)
      (setf total (logand #x3fffffffffffffff
                          (+ (* total 31) (first entry) (length (second entry)) (sxhash (second entry))
                             (reduce #'logxor (third entry))))))))

(let* ((count (* *mebibytes* 1000))
       (entries (loop for n below count collect (build n)))
       (table (make-hash-table :test #'equal)))
  (format t "built ~D ~D~%" (length entries) (sum entries))
  (dolist (entry entries) (setf (gethash (second entry) table) (first entry)))
  (dotimes (round 3)
    (setf entries (loop for entry in entries
                        collect (if (zerop (mod (+ (first entry) round) 3))
                                    (build (+ (first entry) (* 3 count)))
                                    entry)))
    (sb-ext:gc :full (= round 1))
    (format t "round ~D ~D~%" round (sum entries)))
  (setf entries (sort entries #'< :key (lambda (entry) (aref (third entry) 7))))
  (format t "sorted ~D~%" (sum entries))
  (loop for n below count
        for key = (second (build n))
        unless (eql (gethash key table) n) do (format t "wrong: ~S~%" key) (sb-ext:exit :code 3))
  (let ((workers (loop for w below 3
                       collect (let ((w w))
                                 (sb-thread:make-thread
                                  (lambda () (sum (loop for n from w below count by 7 collect (build n)))))))))
    (dolist (worker workers) (format t "thread ~D~%" (sb-thread:join-thread worker))))
  (sb-ext:gc :full t)
  (format t "last ~D ~D~%" (hash-table-count table) (sum entries)))
(sb-ext:exit)
